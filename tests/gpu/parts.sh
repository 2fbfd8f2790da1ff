# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tests/gpu.sh: the parts test, sanitize and bench, and the steps that lease has of them.

# on_device NAME LIMIT PROGRAM [ARGUMENTS]: a test program on the device, if it was built
on_device() {
    local name=$1 limit=$2 program=$3 shard=${TREK_TEST_SHARD:-} chosen=${TREK_TEST_CASE:-}
    shift 3
    if [ -n "${listing:-}" ]; then
        ! wanted "$name" || echo "tests/$program"
        return
    fi
    if [ -n "$rehearse" ]; then # a few rows of the op suite, one case or none of the rest
        case $program in test_ops_*) shard=${shard%/*} shard=${shard:-0}/150 ;; test_captur*) chosen='*shape*' ;; *) chosen=- ;; esac
    fi
    if [ -n "$why_not" ]; then
        skip "$name" "$why_not"
    elif [ ! -x "$build/tests/$program" ]; then
        skip "$name" "there is no $program"
    else
        TREK_TEST_SHARD=$shard TREK_TEST_CASE=$chosen TREK_TEST_DEVICE=$device step "$name" "$limit" "$build/tests/$program" "$@"
    fi
}

gpus() { grep -c '^cuda:[0-9]*: ' <"$(log_of devices)" 2>/dev/null || true; }

# What tells most of kernels, several programs at a time; references are computed on the CPU by one thread each.
tests_first() {
    local k
    beside on_device rows_against_the_cpu 90 test_cuda_rows
    TREK_CUDA_ATTENTION=own beside on_device attention_by_own 90 test_attention
    TREK_CUDA_ATTENTION=wgmma TREK_TEST_CASE='*16_*' beside on_device attention_by_wgmma 90 test_attention
    TREK_CUDA_ATTENTION=cudnn TREK_TEST_CASE='*16_is_f64_rounded' beside on_device attention_by_cudnn 90 test_attention
    for k in 0 1 2 3 4 5; do TREK_TEST_SHARD=$k/6 beside on_device op_suite_$k 90 test_ops_forward; done
    for k in 0 1 2; do TREK_TEST_SHARD=$k/3 beside on_device op_gradients_$k 90 test_ops_gradient; done
    beside on_device graph_capture 90 test_capture
    TREK_TEST_STEPS=2 beside on_device models_of_pytorch 90 test_zoo # as the PTX machine runs it
    beside on_device losses 90 test_losses
    together
}

# Training in grains: sums and digests against the CPU's, and the bits of one GPU on several ranks, processes and GPUs. Jobs of
# processes take GPUs one after the other, and share them where there are fewer.
grains() {
    beside on_device sums_and_digests_against_the_cpu 60 test_cuda_binned
    beside on_device grains_of_ranks 240 test_grains
    beside on_device captured_grains 120 test_captured_grains
    beside on_device grains_of_processes 240 test_grain_jobs
    beside on_device digests_of_grains 60 test_digests
    beside on_device audits_of_grains 120 test_audit
}

# What is divided over ranks: state, gradients, parameters; memory that comes and goes.
divided() {
    beside on_device pages 60 test_pages
    beside on_device divided_over_ranks 240 test_sharded
    beside on_device divided_parameters 240 test_divided
}

divided_over_processes() {
    if [ -z "$why_not${listing:-}" ] && [ "$(gpus)" -lt 2 ]; then
        skip divided_over_processes "one GPU: each process needs one of its own"
    else
        TREK_TEST_EACH_GPU=1 TREK_TEST_CASE='test_divided_*' on_device divided_over_processes 200 test_job
    fi
}

tests_further() {
    local name
    beside on_device channels_last 120 test_channels_last
    beside on_device op_table 30 test_ops_table
    beside on_device op_random 60 test_ops_random_rows
    beside on_device bad_input 60 test_ops_bad_calls
    beside on_device op_composites 30 test_ops_composite
    beside on_device op_second_gradients 180 test_ops_second
    beside on_device exact_2_and_3_ranks 240 test_exact
    beside on_device convergence 200 test_convergence
    beside on_device loader_windows_cpu_beside_gpu 200 test_graph_loader
    beside on_device processes_on_one_gpu 200 test_job
    for name in tensor autograd functional functional_edges public_ops nn layers optim arena fused; do
        beside on_device "$name" 120 test_$name
    done
    beside on_device ranks 120 test_ranks
    beside on_device captured_steps_of_ranks 120 test_captured_ranks # with several GPUs
    beside on_device captured_steps_of_processes 180 test_captured_processes
    beside on_device ranks_forward 120 test_ranks_forward
    beside on_device trainer 120 test_trainer
    beside on_device mixed_precision 120 test_mixed
    beside on_device autocast 120 test_autocast
    beside on_device products_of_8_bits 120 test_fp8
    beside on_device training_in_8_bits 120 test_fp8_training
    beside on_device nccl_one_rank 60 test_nccl
    TREK_CUDA_SYNC=1 beside on_device synchronised_after_each_op 120 test_losses
    grains
    divided
    beside on_device mixed_devices 60 test_mixed_devices
    beside on_device heads 60 test_heads
    beside on_device ddp 120 test_ddp
    beside on_device ddp_calls 60 test_ddp_calls
    beside on_device ddp_wrapper 60 test_ddp_wrapper
    beside on_device checkpoint 200 test_checkpoint
    beside on_device checkpoint_damage 120 test_checkpoint_damage
    for name in sync_batch_norm sync_batch_norm_ways rank_sums; do
        beside on_device "$name" 120 test_$name
    done
    beside on_device runs 120 test_run
    beside on_device averaged_parameters 120 test_average
    beside on_device background_averages 120 test_run_background
    together
    on_device allocator_stress 120 test_cuda_device # takes all memory there is
    if [ -z "$why_not${listing:-}" ] && [ "$(gpus)" -lt 2 ]; then
        skip processes_by_nccl "one GPU: each process needs one of its own"
        skip deaths_by_nccl "one GPU: each process needs one of its own"
    else
        TREK_TEST_EACH_GPU=1 on_device processes_by_nccl 200 test_job
        on_device deaths_by_nccl 300 test_grain_deaths
    fi
}

part_test() {
    tests_first
    tests_further
}

part_grains() {
    grains
    together
}

part_divided() {
    divided
    together
    divided_over_processes
}

# tool_at PATH...: the first of these that is a program
tool_at() {
    local path
    for path; do [ -x "$path" ] && { echo "$path"; return; }; done
}
find_sanitizer() {
    sanitizer=$(tool_at "${TREK_GPU_SANITIZER:-}" "$(command -v compute-sanitizer)" /usr/local/cuda/bin/compute-sanitizer \
        /usr/local/cuda/compute-sanitizer/compute-sanitizer /opt/nvidia/compute-sanitizer/compute-sanitizer)
}

# sanitized NAME TOOL LIMIT PROGRAM: what is instrumented runs slowly, so a step is a part of the rows, or a few cases.
sanitized() {
    local name=$1 tool=$2 limit=$3 program=$4 shard=${TREK_TEST_SHARD:-} chosen=${TREK_TEST_CASE:-}
    [ -z "$rehearse" ] || limit=12 shard=${shard%/*} shard=${shard:-0}/200 chosen=${chosen:+*opt_in*}
    if [ -n "$why_not" ]; then
        skip "$name" "$why_not"
    elif [ -z "$sanitizer" ]; then
        skip "$name" "no compute-sanitizer"
    else
        TREK_TEST_DEVICE=$device TREK_TEST_SHORT=1 TREK_TEST_SHARD=$shard TREK_TEST_CASE=$chosen TREK_CACHE=off \
            step "$name" "$limit" "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 \
            --launch-timeout 0 "$build/tests/$program"
    fi
}

part_sanitize() {
    local tool shard program
    find_sanitizer
    for tool in memcheck racecheck initcheck synccheck; do
        for shard in 0 1 2 3 4 5; do
            for program in forward gradient; do
                TREK_TEST_SHARD=$shard/6 sanitized ${tool}_${program}_$shard $tool 230 test_ops_$program
            done
        done
    done
}

# The reduction between two processes under backward.
bench_overlap() {
    if [ -n "$why_not" ]; then
        skip overlap "$why_not"
    elif [ "$(gpus)" -lt 2 ]; then
        skip overlap "one GPU: reduction under backward by NCCL needs two"
    else
        step overlap 120 "$build/tools/trek-run" -n 2 "$build/tests/bench/trek-bench-overlap"
    fi
}

# Steps of whole batches, in grains that are called, and in grains that are replayed, in turns.
bench_grains() {
    local few=(--turns 11)
    [ -z "$rehearse" ] || few=(--turns 1 --ms 1 --batch 16)
    if [ -n "$why_not" ]; then
        skip captured_grains "$why_not"
    else
        step captured_grains 120 "$build/tests/bench/trek-bench-grains" --gpu 1 "${few[@]}" lenet mlp-deep char-gpt
    fi
}

# measured NAME LIMIT WORK [OPTIONS]: a work of the benchmark, its figures into bench-WORK.json of the part
measured() {
    local name=$1 limit=$2 of=$3 scale=()
    shift 3
    [ -z "$rehearse" ] || scale=(--scale 256 --ms 0.1 --rounds 1)
    if [ -n "$why_not" ]; then
        skip "$name" "$why_not"
    else
        step "$name" "$limit" "$python" tests/bench/gpu_bench.py --build "$build" --device "$device" --json "$work/$part/bench-$of.json" "$@" "${scale[@]}" "$of"
    fi
}

part_bench() {
    local name
    for name in $("$python" tests/bench/gpu_bench.py --list); do
        case $only:$name in
        :* | "$name:$name" | models:model_* | gpt2:gpt2_[0-9]*) ;;
        *) continue ;;
        esac
        measured "$name" 300 "$name" # 100 s for trek, 180 s for PyTorch
    done
    case $only in "" | overlap) bench_overlap ;; esac
    case $only in "" | grains) bench_grains ;; esac
}
