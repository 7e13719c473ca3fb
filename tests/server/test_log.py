"""Logs: a line a record, in JSON with every extra field."""

from __future__ import annotations

import json
import logging
import sys

import httpx

from refectory_server.log import JsonFormatter
from refectory_server.testing.server_process import server_process


def test_a_record_is_one_line_of_json_with_its_extra_fields() -> None:
    record = logging.makeLogRecord(
        {
            "name": "a.b",
            "levelname": "WARNING",
            "msg": "two\nlines and ü, %d",
            "args": (3,),
            "created": 1700000000.25,
            "request_id": "r1",
        }
    )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "warning",
        "logger": "a.b",
        "message": "two\nlines and ü, 3",
        "request_id": "r1",
    }


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.makeLogRecord({"exc_info": sys.exc_info()})
    assert json.loads(JsonFormatter().format(record))["exception"].endswith("ValueError: no")


def test_the_server_logs_json_from_both_processes_and_never_a_prompt() -> None:
    with server_process("--simulate=instant", "--log-format=json") as server:
        server.wait_until_ready()
        body = {"prompt": "a secret", "max_tokens": 3, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body)
        assert answer.status_code == 200
        output = server.output
    records = [json.loads(line) for line in output.splitlines()]
    loggers = {record["logger"] for record in records}
    assert "refectory_server.engine.engine_process" in loggers
    (ended,) = [record for record in records if "e2e_s" in record]
    assert ended["num_prompt_tokens"] == 8
    assert ended["num_output_tokens"] == 3
    assert ended["finish_reason"] == "length"
    assert ended["request_id"] in answer.json()["id"]
    assert "secret" not in output
