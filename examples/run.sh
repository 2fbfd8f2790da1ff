#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up and trains the main example: LeNet on MNIST, on two CPU ranks.
#
#   examples/run.sh [options of the program]
#
# Data: the folder mnist/ below TREK_DATA (default: ../shared/data where that exists, else data). Where it holds no MNIST, the
# files are fetched into it, if the network lets them (fetch_mnist.sh); else the program trains on digits that the library draws.
set -eu
cd "$(dirname "$0")/.."

need=""
command -v meson >/dev/null 2>&1 || need="$need meson"
command -v ninja >/dev/null 2>&1 || need="$need ninja-build"
command -v cc >/dev/null 2>&1 || need="$need gcc libc6-dev"
echo '#include <zlib.h>' | cc -E - >/dev/null 2>&1 || need="$need zlib1g-dev"
echo '#include <oneapi/dnnl/dnnl.h>' | cc -E - >/dev/null 2>&1 || need="$need libdnnl-dev"
if [ -n "$need" ]; then
    sudo=""
    [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get update -qq
    # shellcheck disable=SC2086
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev $need
fi

build=build-examples
[ -f $build/build.ninja ] || meson setup $build -Dtests=false -Dexamples=true -Dcuda=disabled -Dmpi=disabled
ninja -C $build examples/mnist

default=data
[ ! -d ../shared/data ] || default=../shared/data
data=${TREK_DATA:-$default}/mnist
has_mnist() { ls "$data"/train-images-idx3-ubyte* >/dev/null 2>&1 || ls "$data"/t10k-images-idx3-ubyte* >/dev/null 2>&1; }
if has_mnist || why=$(examples/fetch_mnist.sh "$data"); then
    set -- --data "$data" "$@"
else
    echo "No MNIST in $data, and it cannot be fetched: $why. Training on drawn digits."
fi
exec ./$build/examples/mnist --ranks 2 --save $build/mnist.safetensors "$@"
