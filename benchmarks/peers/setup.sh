#!/usr/bin/env bash
# Makes the peers' virtual environments, one each, away from surefoot's own (their pins disagree).
#   SUREFOOT_PEERS=/where  where they go (default /tmp/surefoot-peers)
#   PYTHON=python3.11      the interpreter that makes them
# usage: benchmarks/peers/setup.sh [corl] [d3rlpy] [jax] [flow] [paired_jax] [gymnax] [sb3] [sbx] [mppi]     (none named: all)
# An environment that is complete is left as it is; a half-made one is made again.
set -euo pipefail

root="${SUREFOOT_PEERS:-/tmp/surefoot-peers}"
python="${PYTHON:-python3.11}"
torch="torch==2.13.0"

make() { # make NAME REQUIREMENT...
    local home="$root/$1" stamp="$root/$1/.complete-for"
    shift
    if [[ -f "$stamp" && "$(cat "$stamp")" == "$*" ]]; then
        echo "$home: already there"
        return
    fi
    rm -rf "$home"
    "$python" -m venv "$home"
    "$home/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    printf '%s' "$*" >"$stamp"
    echo "$home: made"
}

mkdir -p "$root"
[[ $# -gt 0 ]] || set -- corl d3rlpy jax flow paired_jax gymnax sb3 sbx mppi
for name in "$@"; do
    case "$name" in
    # What CORL's, RIQL's and OSRL's scripts import, in today's versions; gym, d4rl, wandb and fsrl are stood in for.
    corl) make corl "$torch" numpy==2.4.6 "gymnasium[mujoco]==1.4.0" mujoco==4.0.0 h5py pyrallis scipy tqdm ;;
    d3rlpy) make d3rlpy "$torch" d3rlpy==2.8.1 ;;
    jax) make jax jax==0.10.2 jaxlib==0.10.2 ;;
    # What the official FQL and Q-chunking import; distrax is stood in for by flow_official.py.
    flow) make flow jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 optax==0.2.8 ml_collections==1.1.0 ;;
    # What the official IQL, FQL, Q-chunking, QAM, RLPD, WSRL and CORL's ReBRAC import; distrax, TensorFlow Probability, gym
    # and d4rl are stood in for by the runners.
    paired_jax) make paired_jax jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 optax==0.2.8 tqdm h5py \
        "gymnasium[mujoco]==1.4.0" mujoco==4.0.0 ml_collections==1.1.0 ogbench==1.2.2 chex absl-py overrides ;;
    gymnax) make gymnax jax==0.10.2 jaxlib==0.10.2 gymnax==1.0.1 six ;; # gymnax imports six without asking for it
    sb3) make sb3 "$torch" numpy==2.4.6 stable-baselines3==2.9.2 sb3-contrib==2.9.2 "gymnasium[mujoco]==1.4.0" mujoco==4.0.0 ;;
    sbx) make sbx "$torch" sbx-rl==0.28.0 "gymnasium[mujoco]==1.4.0" mujoco==4.0.0 jax==0.10.2 jaxlib==0.10.2 ;;
    mppi) make mppi "$torch" numpy==2.4.6 pytorch-mppi==0.9.1 ;;
    *)
        echo "setup.sh: unknown peer '$name' (corl, d3rlpy, jax, flow, paired_jax, gymnax, sb3, sbx, mppi)" >&2
        exit 2
        ;;
    esac
done
