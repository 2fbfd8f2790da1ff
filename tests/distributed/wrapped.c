/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/distributed/wrapped.h"

#include <pthread.h>
#include <unistd.h>

#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tests/support/ddp_net.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* --- which parameters have gradients afterwards ---------------------------------------------------------- */

void wrap(wrapped *w, int n, trek_dtype dtype, const trek_ddp_opts *opts)
{
    memset(w, 0, sizeof *w);
    w->n = n;
    for (int r = 0; r < n; r++)
        w->models[r] = ddp_net_new(dtype, 0);
    w->ddp = trek_ddp_wrap(w->models, n, opts);
    if (!w->ddp)
        print_error("%s\n", trek_error());
    assert_non_null(w->ddp);
}

/* --- parameters larger than a bucket --------------------------------------------------------------------- */

void expect_close(const trek_var *a, const trek_var *b)
{
    double *x = test_read(trek_var_data(a)), *y = test_read(trek_var_data(b));
    assert_int_equal(trek_var_numel(a), trek_var_numel(b));
    for (int64_t i = 0; i < trek_var_numel(a); i++)
        assert_true(fabs(x[i] - y[i]) <= 1e-12 * (1 + fabs(y[i])));
    free(x);
    free(y);
}

/* --- values of all replicas ------------------------------------------------------------------------------ */

bool same_values(trek_module *a, trek_module *b, const char *name)
{
    return test_same_bits(trek_var_data(trek_module_find(a, name)), trek_var_data(trek_module_find(b, name)));
}

trek_module *normed(void)
{
    return trek_nn_sequential((trek_module *[]){ trek_nn_linear(IN, 4, test_device()),
                                                 trek_nn_batch_norm1d(4, test_device()) }, 2);
}
