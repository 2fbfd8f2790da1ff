/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/optim/model.h"

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/params.h"
#include "tests/support/optimizer_options.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- an allocator that can be told to fail --------------------------------------------------------------- */

long fail_in = -1;

void *test_allocate(size_t bytes, size_t alignment, void *arg)
{
    if (fail_in == 0)
        return NULL;
    if (fail_in > 0)
        fail_in--;
    void *memory = NULL;
    return posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes ? bytes : 1) ? NULL : memory;
}

void test_release(void *memory, size_t bytes, void *arg)
{
    free(memory);
}

/* --- helpers --------------------------------------------------------------------------------------------- */

const int64_t counts[MODEL] = { 3, 64, 1, BIG, 70 };
static const char *const names[MODEL] = { "a.weight", "a.bias", "b.weight", "b.bias", "c" };
uint64_t random_state = 1;

double number(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 40) / (1 << 23) - 1.0;
}

trek_var *new_var(const double *values, int64_t n, trek_dtype dtype, bool requires_grad)
{
    trek_tensor *tensor = test_values(values, trek_dims(n), dtype);
    trek_var *var = trek_var_new(tensor, requires_grad);
    trek_tensor_release(tensor);
    return var;
}

void read_tensor(const trek_tensor *tensor, double *values)
{
    size_t bytes = (size_t)trek_tensor_numel(tensor) * sizeof(double);
    assert_int_equal(trek_tensor_to_host(tensor, TREK_F64, values, bytes), TREK_OK);
}

void set_grad(trek_var *var, const double *values)
{
    trek_var *grad = new_var(values, trek_var_numel(var), trek_var_dtype(var), false);
    assert_int_equal(trek_var_set_grad(var, grad), TREK_OK);
    trek_var_release(grad);
}

void model_begin(model *m, trek_dtype dtype)
{
    memset(m, 0, sizeof *m);
    m->params = trek_params_new();
    for (int k = 0; k < MODEL; k++) {
        for (int64_t i = 0; i < counts[k]; i++)
            m->values[k][i] = (double)(float)number();
        m->vars[k] = new_var(m->values[k], counts[k], dtype, true);
        assert_int_equal(trek_params_add(m->params, names[k], m->vars[k]), TREK_OK);
    }
}

void model_end(model *m)
{
    for (int k = 0; k < MODEL; k++)
        trek_var_release(m->vars[k]);
    trek_params_free(&m->params);
    assert_int_equal(trek_error_status(), TREK_OK);
}

void check_values(const model *m, double tolerance)
{
    double have[BIG];
    for (int k = 0; k < MODEL; k++) {
        read_tensor(trek_var_data(m->vars[k]), have);
        for (int64_t i = 0; i < counts[k]; i++)
            if (!(fabs(have[i] - m->values[k][i]) <= tolerance))
                fail_msg("%s[%d] is %.17g, not %.17g", names[k], (int)i, have[i], m->values[k][i]);
    }
}

/* --- the formulas, plainly ------------------------------------------------------------------------------- */

static void plain_adam(model *m, int k, const double *grad, trek_adam_opts o, bool decoupled)
{
    int t = ++m->steps[k];
    for (int64_t i = 0; i < counts[k]; i++) {
        double g = o.maximize ? -grad[i] : grad[i], *p = &m->values[k][i], *a = &m->m[k][i], *b = &m->v[k][i];
        if (decoupled)
            *p -= o.lr * o.weight_decay * *p;
        else
            g += o.weight_decay * *p;
        *a = o.beta1 * *a + (1 - o.beta1) * g;
        *b = o.beta2 * *b + (1 - o.beta2) * g * g;
        double root = sqrt(*b) / sqrt(1 - pow(o.beta2, t));
        *p -= o.lr / (1 - pow(o.beta1, t)) * *a / (root + o.eps);
    }
}

static void plain_sgd(model *m, int k, const double *grad, trek_sgd_opts o)
{
    bool first = m->steps[k]++ == 0;
    for (int64_t i = 0; i < counts[k]; i++) {
        double g = o.maximize ? -grad[i] : grad[i], *p = &m->values[k][i], *buffer = &m->m[k][i];
        g += o.weight_decay * *p;
        if (o.momentum > 0) {
            *buffer = first ? g : o.momentum * *buffer + (1 - o.dampening) * g;
            g = o.nesterov ? g + o.momentum * *buffer : *buffer;
        }
        *p -= o.lr * g;
    }
}

static void plain_step(model *m, int k, const double *grad, const trek_optimizer_spec *spec)
{
    if (test_is_class(spec, "sgd"))
        plain_sgd(m, k, grad, test_sgd_opts(spec));
    else if (test_is_class(spec, "rmsprop"))
        for (int64_t i = 0; i < counts[k]; i++)
            test_plain_rmsprop(spec, grad[i], &m->values[k][i], &m->m[k][i], &m->v[k][i], &m->w[k][i]);
    else
        plain_adam(m, k, grad, test_adam_opts(spec), test_is_class(spec, "adamw"));
}

void feed(model *m, unsigned mask, const trek_optimizer_spec *spec)
{
    double grad[BIG];
    for (int k = 0; k < MODEL; k++) {
        if (!(mask >> k & 1))
            continue;
        for (int64_t i = 0; i < counts[k]; i++)
            grad[i] = (double)(float)number();
        set_grad(m->vars[k], grad);
        plain_step(m, k, grad, spec);
    }
}

trek_optimizer_spec some_adamw(void)
{
    return trek_adamw(&(trek_adam_opts){ .lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1 });
}
