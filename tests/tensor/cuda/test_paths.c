/* SPDX-License-Identifier: Apache-2.0 */
/* Which way served a call, and why another did not: counts, reasons and the log, on the fake device, where each refusal is
 * forced. What decides is read from the environment once, so every case of a GPU is a process of its own: this program again. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/backend.h"
#include "tensor/device_paths.h"
#include "tensor/print.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* --- what a process sees ---------------------------------------------------------------------- */

static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;
static char lines[1 << 16]; /* of paths; warnings of attention */
static char warnings[1 << 14];

static void keep(trek_log_level level, const char *message, void *arg)
{
    const bool warns = level == TREK_LOG_LEVEL_WARNING && (strstr(message, "attention") || strstr(message, "ATTENTION"));
    char *to = warns ? warnings : lines;
    const size_t size = warns ? sizeof warnings : sizeof lines;
    if (!warns && strncmp(message, "path: ", 6) != 0)
        return;
    pthread_mutex_lock(&lines_lock);
    size_t used = strlen(to);
    snprintf(to + used, size - used, "%s\n", message);
    pthread_mutex_unlock(&lines_lock);
}

static int count_in(const char *text, const char *part)
{
    int n = 0;
    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part))
        n++;
    return n;
}

static void expect_lines(const char *part, int n)
{
    if (count_in(lines, part) != n)
        fail_msg("\"%s\" is %d times and not %d times in:\n%s", part, count_in(lines, part), n, lines);
}

static trek_device_path row_of(const char *what, const char *path)
{
    trek_device_path rows[64];
    int n = trek_device_paths(test_device(), rows, 64);
    assert_true(n > 0 && n <= 64);
    for (int k = 0; k < n; k++)
        if (strcmp(rows[k].what, what) == 0 && strcmp(rows[k].path, path) == 0)
            return rows[k];
    fail_msg("there is no row %s %s", what, path);
    return rows[0];
}

static void expect_row(const char *what, const char *path, int64_t calls, int64_t refused, const char *reason)
{
    trek_device_path row = row_of(what, path);
    if (row.calls != calls || row.refused != refused)
        fail_msg("%s by %s: %lld calls and %lld refused (%s), not %lld and %lld", what, path, (long long)row.calls,
                 (long long)row.refused, row.reason ? row.reason : "", (long long)calls, (long long)refused);
    if (!reason != !row.reason || (reason && !strstr(row.reason, reason)))
        fail_msg("%s by %s: the reason is \"%s\", without \"%s\"", what, path, row.reason ? row.reason : "",
                 reason ? reason : "");
}

/* --- calls ---------------------------------------------------------------------------------------- */

static trek_var *leaf(uint32_t stream, trek_shape shape, trek_dtype dtype)
{
    trek_tensor *wide = test_tensor(stream, shape, 1);
    trek_var *v = trek_var_from(trek_tensor_cast(wide, dtype));
    trek_tensor_release(wide);
    assert_non_null(v);
    assert_int_equal(trek_var_set_requires_grad(v, true), TREK_OK);
    return v;
}

/* Forward, and backward unless there is a mask or dropout. */
static void attend(trek_dtype dtype, int64_t queries, int64_t depth, trek_dtype mask, double dropout)
{
    trek_shape shape = trek_dims(1, 2, queries, depth);
    trek_var *q = leaf(1, shape, dtype), *k = leaf(2, shape, dtype), *v = leaf(3, shape, dtype);
    trek_var *seen = mask == TREK_F32 ? trek_var_from(test_tensor(4, trek_dims(queries, queries), 1)) : NULL;
    trek_var *y = trek_attention(q, k, v, &(trek_attention_opts){ .mask = seen, .dropout = dropout });
    if (!y)
        fail_msg("%s", trek_error());
    if (!seen && dropout == 0)
        assert_int_equal(trek_backward(trek_sum(trek_mul(y, leaf(9, shape, dtype)), trek_dims_all(), false)), TREK_OK);
    assert_int_equal(trek_device_sync(test_device()), TREK_OK);
}

static void attend_plainly(trek_dtype dtype, int64_t depth) { attend(dtype, 40, depth, TREK_BOOL, 0); }

static void multiply(int64_t m, int64_t k, int64_t n)
{
    trek_var *x = leaf(5, trek_dims(m, k), TREK_F32), *y = leaf(6, trek_dims(k, n), TREK_F32);
    assert_non_null(trek_matmul(x, y));
    assert_int_equal(trek_device_sync(test_device()), TREK_OK);
}

static void convolve(bool channels_last)
{
    trek_var *x = leaf(7, trek_dims(1, 3, 8, 8), TREK_F32), *w = leaf(8, trek_dims(4, 3, 3, 3), TREK_F32);
    trek_var *y = trek_conv2d(channels_last ? trek_channels_last(x) : x, w, NULL, NULL);
    if (!y)
        fail_msg("%s", trek_error());
    assert_int_equal(trek_backward(trek_sum(y, trek_dims_all(), false)), TREK_OK);
    assert_int_equal(trek_device_sync(test_device()), TREK_OK);
}

/* --- cases, each in a process of its own ----------------------------------------------------------- */

static void counts_and_report(void)
{
    expect_row("matmul", "cublaslt", 0, 0, NULL);
    for (int k = 0; k < 3; k++)
        multiply(32, 24, 40);
    multiply(32, 24, 48);
    expect_row("matmul", "cublaslt", 4, 0, NULL);
    expect_row("matmul", "own", 0, 0, NULL);
    expect_lines("path: cuda:0 matmul by cublaslt: f32, m 32, n 40, k 24, batch 1", 1);
    expect_lines("matmul by cublaslt", 2);
    char *text = trek_device_report(test_device());
    assert_string_equal(text, "path: cuda:0 matmul cublaslt: 4 calls\n");
    trek_string_free(&text);
    int n = trek_device_paths(test_device(), NULL, 0);
    trek_device_path some[2] = { { .what = NULL } };
    assert_int_equal(trek_device_paths(test_device(), some, 1), n);
    assert_non_null(some[0].what);
    assert_null(some[1].what);
    assert_int_equal(trek_device_paths(trek_cuda(1), NULL, 0), n);
    assert_int_equal(trek_device_paths(trek_cuda(77), some, 2), 0);
    trek_device_paths_reset(test_device());
    expect_row("matmul", "cublaslt", 0, 0, NULL);
    text = trek_device_report(test_device());
    assert_string_equal(text, "");
    trek_string_free(&text);
}

static void *multiply_often(void *arg)
{
    trek_scope scope = trek_scope_begin();
    for (int k = 0; k < 50; k++)
        multiply(16, 16, 16);
    trek_scope_end(scope);
    return NULL;
}

static void threads_count(void)
{
    pthread_t threads[4];
    for (int k = 0; k < 4; k++)
        assert_int_equal(pthread_create(&threads[k], NULL, multiply_often, NULL), 0);
    for (int k = 0; k < 4; k++)
        pthread_join(threads[k], NULL);
    expect_row("matmul", "cublaslt", 200, 0, NULL);
    expect_lines("matmul by cublaslt", 1);
}

static void no_cublaslt(void)
{
    multiply(32, 24, 40);
    multiply(32, 24, 40);
    expect_row("matmul", "cublaslt", 0, 2, "/nowhere/libcublasLt.so");
    expect_row("matmul", "own", 2, 0, NULL);
    expect_lines("path: cuda:0 matmul by own: f32, m 32, n 40, k 24", 1);
    expect_lines("; cublaslt refused: /nowhere/libcublasLt.so", 1);
    char *text = trek_device_report(test_device());
    assert_non_null(strstr(text, "path: cuda:0 matmul cublaslt: 0 calls, 2 refused (the last: /nowhere/libcublasLt.so"));
    assert_int_equal(count_in(text, "path: "), 2);
    trek_string_free(&text);
}

static void no_algorithm(void)
{
    multiply(32, 24, 40);
    expect_row("matmul", "cublaslt", 0, 1, "cuBLASLt has no algorithm");
    expect_row("matmul", "own", 1, 0, NULL);
    expect_lines("; cublaslt refused: cuBLASLt has no algorithm", 1);
}

static void no_layout(void)
{
    trek_var *x = trek_select(leaf(5, trek_dims(8, 8, 2), TREK_F32), 2, 0);
    assert_non_null(trek_matmul(x, leaf(6, trek_dims(8, 8), TREK_F32)));
    expect_row("matmul", "cublaslt", 0, 1, "cuBLASLt has no form");
    expect_row("matmul", "own", 1, 0, NULL);
    expect_lines("; cublaslt refused: cuBLASLt has no form", 1);
}

static void no_cudnn(void)
{
    attend_plainly(TREK_BF16, 64);
    expect_row("attention", "cudnn", 0, 1, "/nowhere/libcudnn.so");
    expect_row("attention_backward", "cudnn", 0, 1, "/nowhere/libcudnn.so");
    expect_row("attention", "mma", 1, 0, NULL);
    expect_lines("path: cuda:0 attention by mma: bf16, batch 1, heads 2, kv_heads 2, queries 40, keys 40, depth 64", 1);
    expect_lines("; cudnn refused: /nowhere/libcudnn.so", 2);
    assert_int_equal(count_in(warnings, "TREK_CUDA_ATTENTION asks for cuDNN"), 1);
    convolve(true);
    expect_row("conv2d", "cudnn", 0, 1, "/nowhere/libcudnn.so");
    expect_row("conv2d", "own", 1, 0, NULL);
    convolve(false);
    expect_row("conv2d", "cudnn", 0, 2, "row by row");
    expect_row("conv2d", "own", 2, 0, NULL);
    expect_row("conv2d_backward", "own", 4, 0, NULL);
}

static void cudnn_refuses(void)
{
    attend_plainly(TREK_F16, 64);
    expect_row("attention", "cudnn", 0, 1, "cuDNN does not take the graph");
    expect_row("attention_backward", "cudnn", 0, 1, "cuDNN does not take the graph");
    expect_row("attention_backward", "mma", 1, 0, NULL);
    convolve(true);
    expect_row("conv2d", "cudnn", 0, 1, "cuDNN does not take the graph");
    expect_row("conv2d", "cudnn_call", 0, 1, "single convolutions");
    expect_row("conv2d", "own", 1, 0, NULL);
    expect_lines("path: cuda:0 conv2d by own: f32, images 1, channels 3, height 8, width 8, filters 4", 1);
    expect_lines("; cudnn refused: cuDNN does not take the graph; cudnn_call refused: ", 3);
}

static void cudnn_takes(void)
{
    attend_plainly(TREK_BF16, 64);
    attend(TREK_BF16, 40, 64, TREK_F32, 0);
    expect_row("attention", "cudnn", 1, 1, "a mask");
    expect_row("attention_backward", "cudnn", 1, 0, NULL);
    convolve(true);
    expect_row("conv2d", "cudnn", 1, 0, NULL);
    expect_row("conv2d_backward", "cudnn", 2, 0, NULL);
    expect_row("conv2d", "own", 0, 0, NULL);
}

/* Forward and backward of wgmma are refused for a reason; mma serves them. */
static void wgmma_is_refused(const char *reason)
{
    attend_plainly(TREK_BF16, 64);
    attend_plainly(TREK_BF16, 64);
    expect_row("attention", "wgmma", 0, 2, reason);
    expect_row("attention_backward", "wgmma", 0, 2, reason);
    expect_row("attention", "mma", 2, 0, NULL);
    expect_row("attention_backward", "mma", 2, 0, NULL);
    expect_lines("; wgmma refused: ", 2);
    assert_string_equal(warnings, "");
}

static void no_tensor_map(void) { wgmma_is_refused("the driver does not encode a tensor map"); }
static void no_kernel(void) { wgmma_is_refused("no code of the kernel for sm_90a"); }
static void other_capability(void) { wgmma_is_refused("a compute capability other than 9.0"); }

static void wgmma_suits_not(void)
{
    attend(TREK_BF16, 40, 64, TREK_F32, 0);
    expect_row("attention", "wgmma", 0, 1, "a mask");
    attend(TREK_BF16, 40, 64, TREK_BOOL, 0.25);
    expect_row("attention", "wgmma", 0, 2, "dropout");
    attend_plainly(TREK_F32, 64);
    expect_row("attention", "wgmma", 0, 3, "a dtype other than bf16 and f16");
    expect_row("attention", "mma", 2, 1, "a dtype other than bf16 and f16");
    expect_row("attention", "simple", 1, 0, NULL);
    attend_plainly(TREK_F16, 64);
    expect_row("attention", "wgmma", 1, 3, "a dtype other than bf16 and f16");
    expect_row("attention_backward", "wgmma", 1, 1, "a dtype other than bf16 and f16");
}

static void auto_is_mma_on_others(void)
{
    attend_plainly(TREK_BF16, 64);
    expect_row("attention", "wgmma", 0, 0, NULL);
    expect_row("attention", "mma", 1, 0, NULL);
    expect_row("attention_backward", "mma", 1, 0, NULL);
}

/* Kernels for sm_90a that do nothing are found out at the first call of each dtype and class of depths, once. */
static void auto_finds_out(void)
{
    int64_t allocated = trek_memory_usage(test_device()).allocated;
    trek_scope scope = trek_scope_begin();
    for (int k = 0; k < 3; k++)
        attend_plainly(TREK_BF16, k == 1 ? 40 : 64);
    expect_row("attention", "wgmma", 0, 3, "its results differed from mma's");
    expect_row("attention_backward", "wgmma", 0, 3, "its results differed from mma's");
    expect_row("attention", "mma", 3, 0, NULL);
    assert_int_equal(count_in(warnings, "attention on cuda:0, bf16, depth up to 64: y of the kernels for sm_90a differs by inf"),
                     1);
    attend_plainly(TREK_F16, 128);
    assert_int_equal(count_in(warnings, "attention on cuda:0, f16, depth up to 128: "), 1);
    assert_int_equal(count_in(warnings, "\n"), 2);
    trek_scope_end(scope);
    assert_int_equal(trek_memory_usage(test_device()).allocated, allocated);
}

/* What goes wrong while kernels are compared is no error of the call. */
static void auto_cannot_compare(void)
{
    attend_plainly(TREK_BF16, 64);
    assert_int_equal(trek_error_status(), TREK_OK);
    expect_row("attention", "wgmma", 0, 1, "it could not be compared");
    expect_row("attention", "mma", 1, 0, NULL);
    assert_int_equal(count_in(warnings, "could not be compared"), 1);
}

/* A first call in a capture compares nothing, and what it takes stays. */
static void auto_in_a_capture(void)
{
    trek_shape shape = trek_dims(1, 2, 40, 64);
    trek_capture *capture = NULL;
    trek_var *q = leaf(1, shape, TREK_BF16);
    const trek_backend *backend = trek_backend_get(TREK_CUDA);
    assert_int_equal(trek_device_sync(test_device()), TREK_OK);
    assert_int_equal(backend->capture_begin(test_device()), TREK_OK);
    assert_non_null(trek_attention(q, q, q, NULL));
    assert_int_equal(backend->capture_end(test_device(), &capture), TREK_OK);
    expect_row("attention", "mma", 1, 0, NULL);
    assert_int_equal(backend->capture_replay(capture, 1), TREK_OK);
    expect_row("attention", "mma", 1, 0, NULL);
    attend_plainly(TREK_BF16, 64);
    expect_row("attention", "wgmma", 0, 2, "while a step was captured");
    expect_row("attention", "mma", 2, 0, NULL);
    assert_string_equal(warnings, "");
    assert_int_equal(trek_device_sync(test_device()), TREK_OK);
    backend->capture_free(capture);
}

/* In the PTX machine the kernels for sm_90a agree, and serve the calls; nothing of the comparison is counted. */
static void auto_agrees(void)
{
    attend_plainly(TREK_BF16, 64);
    expect_row("attention", "wgmma", 1, 0, NULL);
    expect_row("attention_backward", "wgmma", 1, 0, NULL);
    expect_row("attention", "mma", 0, 0, NULL);
    expect_row("attention_backward", "mma", 0, 0, NULL);
    assert_string_equal(warnings, "");
}

static const struct {
    const char *name, *environment; /* "NAME=value NAME=value" */
    void (*run)(void);
    bool ptx; /* where TREK_TEST_PTX is set, and only there */
} cases[] = {
    { "counts_and_report", "", counts_and_report, false },
    { "threads_count", "", threads_count, false },
    { "no_cublaslt", "TREK_CUBLASLT_LIBRARY=/nowhere/libcublasLt.so", no_cublaslt, false },
    { "no_algorithm", "TREK_FAKE_FAIL=cublasLtMatmulAlgoGetHeuristic:1+", no_algorithm, false },
    { "no_layout", "", no_layout, false },
    { "no_cudnn", "TREK_CUDA_ATTENTION=cudnn TREK_CUDNN_LIBRARY=/nowhere/libcudnn.so", no_cudnn, false },
    { "cudnn_refuses", "TREK_CUDA_ATTENTION=cudnn TREK_FAKE_FAIL=cudnnBackendFinalize:1+", cudnn_refuses, false },
    { "cudnn_takes", "TREK_CUDA_ATTENTION=cudnn", cudnn_takes, false },
    { "no_tensor_map", "TREK_CUDA_ATTENTION=wgmma TREK_FAKE_SM_90A=1 TREK_FAKE_FAIL=cuTensorMapEncodeTiled:1+", no_tensor_map,
      false },
    { "no_tensor_map_auto", "TREK_FAKE_SM_90A=1 TREK_FAKE_FAIL=cuTensorMapEncodeTiled:1+", no_tensor_map, false },
    { "no_kernel", "TREK_CUDA_ATTENTION=wgmma", no_kernel, false },
    { "no_kernel_auto", "TREK_CUDA_ATTENTION=auto", no_kernel, false },
    { "other_capability", "TREK_CUDA_ATTENTION=wgmma TREK_FAKE_SM_90A=1 TREK_FAKE_CAPABILITY=8.0", other_capability, false },
    { "wgmma_suits_not", "TREK_CUDA_ATTENTION=wgmma TREK_FAKE_SM_90A=1", wgmma_suits_not, false },
    { "auto_is_mma_on_others", "TREK_FAKE_SM_90A=1 TREK_FAKE_CAPABILITY=8.0", auto_is_mma_on_others, false },
    { "own_is_mma", "TREK_CUDA_ATTENTION=own TREK_FAKE_SM_90A=1", auto_is_mma_on_others, false },
    { "auto_finds_out", "TREK_FAKE_SM_90A=1", auto_finds_out, false },
    { "auto_cannot_compare", "TREK_FAKE_SM_90A=1 TREK_FAKE_FAIL=cudaMemsetAsync:1", auto_cannot_compare, false },
    { "auto_in_a_capture", "TREK_FAKE_SM_90A=1", auto_in_a_capture, false },
    { "auto_agrees", "", auto_agrees, true },
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* --- processes ---------------------------------------------------------------------------------------- */

static int chosen = -1; /* the case that this process is for */

static void run_chosen(void **state)
{
    trek_log_set(TREK_LOG_LEVEL_INFO, keep, NULL);
    assert_true(trek_device_count(TREK_CUDA) > 0);
    trek_scope scope = trek_scope_begin();
    assert_int_equal(trek_device_sync(test_device()), TREK_OK);
    cases[chosen].run();
    trek_scope_end(scope);
}

static void set_environment(const char *text)
{
    char copy[400], *rest = copy;
    snprintf(copy, sizeof copy, "%s", text);
    unsetenv("TREK_LOG");
    unsetenv("TREK_TEST_CASE");
    unsetenv("TREK_CUDA_ATTENTION");
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = 0;
        setenv(word, value + 1, 1);
    }
}

static bool passes(int k)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        set_environment(cases[k].environment);
        execl("/proc/self/exe", "test_paths", cases[k].name, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void refusals_are_counted(void **state)
{
    const char *ptx = getenv("TREK_TEST_PTX");
    if (test_on_cpu() || !getenv("TREK_CUBLASLT_LIBRARY") || !strstr(getenv("TREK_CUBLASLT_LIBRARY"), "libfake_"))
        skip(); /* not asked of the device: what a process does before it forks it should not have opened one */
    int failed = 0;
    for (int k = 0; k < CASES; k++)
        if (cases[k].ptx == (ptx && ptx[0]) && !passes(k)) {
            print_error("%s failed\n", cases[k].name);
            failed++;
        }
    assert_int_equal(failed, 0);
}

static void cpus_have_no_choice(void **state)
{
    trek_device_path rows[2];
    assert_int_equal(trek_device_paths(trek_cpu(0), rows, 2), 0);
    assert_int_equal(trek_device_paths((trek_device){ (trek_device_type)9, 0 }, rows, 2), 0);
    trek_device_paths_reset(trek_cpu(0));
    char *text = trek_device_report(trek_cpu(0));
    assert_string_equal(text, "");
    trek_string_free(&text);
    assert_int_equal(trek_error_status(), TREK_OK);
}

int main(int argc, char **argv)
{
    for (int k = 0; argc > 1 && k < CASES; k++)
        if (strcmp(argv[1], cases[k].name) == 0)
            chosen = k;
    const struct CMUnitTest one[] = { cmocka_unit_test(run_chosen) };
    if (chosen >= 0)
        return cmocka_run_group_tests_name(cases[chosen].name, one, NULL, NULL);
    const struct CMUnitTest tests[] = { cmocka_unit_test(cpus_have_no_choice), cmocka_unit_test(refusals_are_counted) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
