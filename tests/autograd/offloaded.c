/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/autograd/offloaded.h"

#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/leaf.h"
#include "nn/layers.h"
#include "nn/params.h"
#include "tensor/memory.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

const trek_offload_opts everything = { .min_bytes = 1, .ahead = 2 };

int64_t in_use(void) { return trek_memory_usage(test_device()).allocated; }

int nothing_left(void **state)
{
    trek_offload_stats now = trek_offload_usage();
    if (trek_error_status() == TREK_OK && trek_tape_size() == 0 && now.bytes == 0)
        return 0;
    print_error("left: %s, %lld nodes, %lld bytes\n", trek_error(), (long long)trek_tape_size(), (long long)now.bytes);
    return 1;
}

void add_numbers(numbers *to, trek_var *x)
{
    int64_t n = trek_var_numel(x);
    to->at = realloc(to->at, (size_t)(to->n + n) * sizeof *to->at);
    assert_non_null(to->at);
    assert_int_equal(trek_tensor_to_host(trek_var_data(x), TREK_F32, to->at + to->n, (size_t)n * sizeof *to->at), TREK_OK);
    to->n += n;
}

void add_grads(numbers *to, trek_module *m)
{
    trek_params *params = trek_module_params(m);
    for (int k = 0; k < trek_params_count(params); k++) {
        trek_var *param = trek_params_var(params, k);
        if (trek_var_grad(param))
            add_numbers(to, trek_var_grad(param));
        trek_var_set_grad(param, NULL);
    }
    trek_params_free(&params);
}

void assert_same(numbers *a, numbers *b, const char *what)
{
    assert_int_equal(a->n, b->n);
    for (int64_t k = 0; k < a->n; k++)
        if (memcmp(&a->at[k], &b->at[k], sizeof(float)) != 0)
            fail_msg("%s: number %lld is %.9g instead of %.9g", what, (long long)k, (double)b->at[k], (double)a->at[k]);
    free(a->at);
    free(b->at);
}

trek_module *deep_model(void)
{
    trek_module *m = trek_nn_sequential(NULL, 0);
    for (int k = 0; k < DEEP; k++) {
        trek_nn_sequential_add(m, trek_nn_linear(BROAD, BROAD, test_device()));
        trek_nn_sequential_add(m, trek_nn_relu());
    }
    return trek_module_check(m);
}

void quiet(trek_log_level level, const char *message, void *arg)
{
    *(int *)arg += level == TREK_LOG_LEVEL_WARNING && strstr(message, "offload") != NULL;
}
