/* SPDX-License-Identifier: Apache-2.0 */
/* trek_ddp: which parameters have gradients afterwards, in which dtypes and pieces; values of all replicas; what is refused,
 * and that all ranks learn of it. */
#include <pthread.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/ddp.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/state.h"
#include "optim/optimizer.h"
#include "tests/distributed/wrapped.h"
#include "tests/support/ddp_net.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- which parameters have gradients afterwards ---------------------------------------------------------- */

static trek_status drop_grad(const char *name, trek_var *param, void *arg)
{
    trek_var_zero_grad(param);
    return TREK_OK;
}

static trek_status pass_of_who(int rank, void *arg)
{
    wrapped *w = arg;
    if (rank != w->who)
        return TREK_OK;
    trek_scope scope = trek_scope_begin();
    trek_backward(ddp_loss_of(w->models[rank], 3, 0, 3, TREK_F64));
    trek_scope_end(scope);
    return TREK_OK;
}

static void used_by_some_counts_as_zero_elsewhere(void **state)
{
    for (int who = 0; who < 3; who++) {
        wrapped w;
        wrap(&w, 3, TREK_F64, NULL);
        w.who = who;
        trek_scope scope = trek_scope_begin();
        trek_module *one = ddp_net_new(TREK_F64, 0);
        trek_backward(ddp_loss_of(one, 3, 0, 3, TREK_F64));
        assert_int_equal(trek_ranks_run(trek_ddp_ranks(w.ddp), pass_of_who, &w), TREK_OK);
        assert_int_equal(trek_ddp_reduce_gradients(w.ddp), TREK_OK);
        for (int r = 0; r < 3; r++) {
            ddp_net *m = (ddp_net *)w.models[r], *o = (ddp_net *)one;
            assert_null(trek_var_grad(m->unused));
            assert_null(trek_var_grad(m->frozen));
            trek_var *mine[] = { m->w1, m->tied, m->branch, m->w2 }, *theirs[] = { o->w1, o->tied, o->branch, o->w2 };
            for (int k = 0; k < 4; k++) {
                assert_non_null(trek_var_grad(mine[k]));
                double *a = test_read(trek_var_data(trek_var_grad(mine[k]))),
                       *b = test_read(trek_var_data(trek_var_grad(theirs[k])));
                for (int64_t i = 0; i < trek_var_numel(mine[k]); i++)
                    assert_true(fabs(3 * a[i] - b[i]) < 1e-14);
                free(a);
                free(b);
            }
        }
        /* what only a rank that counts 0 has used is used, as on one device, and its gradient counts as zeros */
        for (int r = 0; r < 3; r++)
            trek_module_each_param(w.models[r], drop_grad, NULL);
        w.counts[(who + 1) % 3] = 2;
        assert_int_equal(trek_ranks_run(trek_ddp_ranks(w.ddp), pass_of_who, &w), TREK_OK);
        assert_non_null(trek_var_grad(((ddp_net *)w.models[who])->w1));
        assert_int_equal(trek_ddp_reduce_gradients_weighted(w.ddp, w.counts), TREK_OK);
        for (int r = 0; r < 3; r++) {
            trek_var *grad = trek_var_grad(((ddp_net *)w.models[r])->w1);
            assert_non_null(grad);
            double *values = test_read(trek_var_data(grad));
            for (int64_t i = 0; i < trek_var_numel(grad); i++)
                assert_true(values[i] == 0);
            free(values);
        }
        trek_scope_end(scope);
        trek_module_free(&one);
        trek_ddp_free(&w.ddp);
    }
}

/* Two parameters may have been given one gradient, by hand; elsewhere their gradients differ. */
static trek_status shared_gradient_pass(int rank, void *arg)
{
    wrapped *w = arg;
    ddp_net *m = (ddp_net *)w->models[rank];
    trek_scope scope = trek_scope_begin();
    trek_var *a = rank == 0 ? m->b1 : trek_mul_scalar(m->b1, 3);
    trek_var *ones = trek_var_from(trek_tensor_ones(trek_dims(HIDDEN), TREK_F64, test_device()));
    trek_backward(trek_sum(trek_mul(trek_add(a, m->branch), ones), trek_dims_all(), false));
    w->status[rank] = rank > 0 ? TREK_OK : trek_var_set_grad(m->branch, trek_var_grad(m->b1));
    trek_scope_end(scope);
    return TREK_OK;
}

static void gradients_that_share_memory(void **state)
{
    for (int bytes = 0; bytes < 2; bytes++) {
        wrapped w;
        wrap(&w, 2, TREK_F64, &(trek_ddp_opts){ .bucket_bytes = bytes });
        assert_int_equal(trek_ranks_run(trek_ddp_ranks(w.ddp), shared_gradient_pass, &w), TREK_OK);
        assert_int_equal(w.status[0], TREK_OK);
        assert_int_equal(trek_ddp_reduce_gradients(w.ddp), TREK_OK);
        for (int r = 0; r < 2; r++) {
            double *a = test_read(trek_var_data(trek_var_grad(((ddp_net *)w.models[r])->b1)));
            double *b = test_read(trek_var_data(trek_var_grad(((ddp_net *)w.models[r])->branch)));
            for (int i = 0; i < HIDDEN; i++) {
                assert_true(a[i] == 2);
                assert_true(b[i] == 1);
            }
            free(a);
            free(b);
        }
        trek_ddp_free(&w.ddp);
    }
}

/* --- parameters larger than a bucket --------------------------------------------------------------------- */

enum { WIDE = 64 };

static struct {
    trek_module *models[3];
    trek_ddp *ddp;
    bool backward;
} wide;

static trek_status wide_pass(int rank, void *arg)
{
    trek_scope scope = trek_scope_begin();
    trek_var *loss = ddp_loss_of(wide.models[rank], 2, 3 * rank, 3, TREK_F64);
    if (wide.backward)
        trek_ddp_backward_weighted(wide.ddp, loss, rank + 1);
    else
        trek_backward(loss);
    trek_scope_end(scope);
    return trek_error_status();
}

/* Pieces of one parameter, whether it lies in an optimizer's arena or by itself, sent during backward or after. */
static void large_parameters_go_in_pieces(void **state)
{
    double *expected = NULL;
    for (int way = 0; way < 8; way++) {
        trek_optimizer *optimizers[3] = { NULL };
        for (int r = 0; r < 3; r++)
            wide.models[r] = ddp_net_new_with(TREK_F64, 0, WIDE);
        wide.ddp = trek_ddp_wrap(wide.models, 3, &(trek_ddp_opts){ .bucket_bytes = way & 4 ? 0 : 1024,
                                                                   .overlap = way & 1 ? 1 : TREK_OFF });
        assert_non_null(wide.ddp);
        for (int r = 0; r < 3 && way & 2; r++) {
            if (r == 1 && !(way & 4))
                continue; /* not all ranks need one */
            trek_params *params = trek_module_params(wide.models[r]);
            optimizers[r] = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 1 }), params);
            trek_params_free(&params);
        }
        wide.backward = way & 1;
        assert_int_equal(trek_ranks_run(trek_ddp_ranks(wide.ddp), wide_pass, NULL), TREK_OK);
        if (!wide.backward)
            assert_int_equal(trek_ddp_reduce_gradients_weighted(wide.ddp, (double[]){ 1, 2, 3 }), TREK_OK);
        for (int r = 0; r < 3; r++) {
            double *got = test_read(trek_var_data(trek_var_grad(((ddp_net *)wide.models[r])->w1)));
            for (int i = 0; expected && i < WIDE * IN; i++)
                if (!(fabs(got[i] - expected[i]) < 1e-14))
                    fail_msg("way %d, rank %d, element %d: %g instead of %g", way, r, i, got[i], expected[i]);
            if (expected)
                free(got);
            else
                expected = got;
            trek_optimizer_free(&optimizers[r]);
        }
        trek_ddp_free(&wide.ddp);
    }
    free(expected);
}

/* --- losses that are sums -------------------------------------------------------------------------------- */

static trek_status sum_pass(int rank, void *arg)
{
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_forward(((trek_module **)arg)[rank], ddp_rows(1, 2 * rank, 2, IN, TREK_F64));
    trek_backward(trek_sum(y, trek_dims_all(), false));
    trek_scope_end(scope);
    return trek_error_status();
}

/* What ddp.h says: the mean of the ranks' sums; of the joined outputs, the sum itself. */
static void sums_over_ranks(void **state)
{
    trek_module *one = ddp_net_new(TREK_F64, 0);
    trek_scope scope = trek_scope_begin();
    trek_backward(trek_sum(trek_forward(one, ddp_rows(1, 0, 4, IN, TREK_F64)), trek_dims_all(), false));
    for (int joined = 0; joined < 2; joined++) {
        wrapped w;
        wrap(&w, 2, TREK_F64, NULL);
        if (joined)
            trek_ddp_backward(w.ddp, trek_sum(trek_forward(trek_ddp_module(w.ddp), ddp_rows(1, 0, 4, IN, TREK_F64)),
                                              trek_dims_all(), false));
        else if (trek_ranks_run(trek_ddp_ranks(w.ddp), sum_pass, w.models) == TREK_OK)
            trek_ddp_reduce_gradients(w.ddp);
        assert_int_equal(trek_error_status(), TREK_OK);
        expect_close(trek_mul_scalar(trek_var_grad(((ddp_net *)w.models[1])->w2), joined ? 1 : 2),
                     trek_var_grad(((ddp_net *)one)->w2));
        trek_ddp_free(&w.ddp);
    }
    trek_scope_end(scope);
    trek_module_free(&one);
}

/* --- 16-bit parameters ----------------------------------------------------------------------------------- */

static void low_precision_is_summed_wide(void **state)
{
    wrapped w;
    wrap(&w, 3, TREK_BF16, NULL);
    trek_optimizer *optimizers[3] = { NULL };
    for (int with = 0; with < 2; with++) { /* gradients in bf16; then in an optimizer's f32 */
        for (int r = 0; r < 3; r++) {
            ddp_net *m = (ddp_net *)w.models[r];
            trek_params *params = trek_module_params(w.models[r]);
            if (with)
                optimizers[r] = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 1 }), params);
            trek_params_free(&params);
            trek_tensor *t = trek_tensor_full(trek_dims(4), r == 0 ? 1 : 0x1p-7, with ? TREK_F32 : TREK_BF16, test_device());
            trek_scope scope = trek_scope_begin();
            assert_int_equal(trek_var_set_grad(m->unused, trek_var_constant(t)), TREK_OK);
            trek_scope_end(scope);
            trek_tensor_release(t);
        }
        assert_int_equal(trek_ddp_reduce_gradients_weighted(w.ddp, (double[]){ 2, 1, 1 }), TREK_OK);
        double expected = 0.5 + 0x1p-8; /* not of bf16's sum of roundings: 0.5, and then 2^-9 twice */
        for (int r = 0; r < 3; r++) {
            double *g = test_read(trek_var_data(trek_var_grad(((ddp_net *)w.models[r])->unused)));
            for (int i = 0; i < 4; i++)
                assert_true(fabs(g[i] - expected) <= (with ? 0 : 0x1p-9));
            free(g);
        }
    }
    for (int r = 0; r < 3; r++)
        trek_optimizer_free(&optimizers[r]);
    trek_ddp_free(&w.ddp);
}

/* --- values of all replicas ------------------------------------------------------------------------------ */

static void parameters_follow_rank_0(void **state)
{
    wrapped w;
    wrap(&w, 3, TREK_F32, NULL);
    trek_init_ones(((ddp_net *)w.models[0])->w1);
    trek_init_zeros(((ddp_net *)w.models[2])->b2);
    assert_false(same_values(w.models[0], w.models[1], "w1"));
    assert_int_equal(trek_ddp_sync_params(w.ddp), TREK_OK);
    for (int r = 1; r < 3; r++) {
        assert_true(same_values(w.models[0], w.models[r], "w1"));
        assert_true(same_values(w.models[0], w.models[r], "b2"));
        assert_true(same_values(w.models[0], w.models[r], "unused"));
    }
    trek_ddp_free(&w.ddp);
}

/* Each rank's parameter names it: whoever is the root, all have its values. Buffers are left alone. */
static void parameters_follow_any_root(void **state)
{
    for (int root = 0; root < 3; root++) {
        wrapped w;
        wrap(&w, 3, TREK_F32, NULL);
        for (int r = 0; r < 3; r++)
            trek_init_constant(((ddp_net *)w.models[r])->w1, 10 + r);
        assert_int_equal(trek_ddp_sync_params_from(w.ddp, root), TREK_OK);
        for (int r = 0; r < 3; r++) {
            double *values = test_read(trek_var_data(((ddp_net *)w.models[r])->w1));
            assert_true(values[0] == 10 + root);
            free(values);
        }
        FAILS(trek_ddp_sync_params_from(w.ddp, root == 1 ? -1 : 3), TREK_ERR_ARGUMENT, "must be 0 to 2");
        trek_ddp_free(&w.ddp);
    }
    FAILS(trek_ddp_sync_params_from(NULL, 0), TREK_ERR_ARGUMENT, "wrapper");
}

static trek_status sum_of_ranks(int rank, void *arg)
{
    wrapped *w = arg;
    trek_comm *comm = trek_ddp_comm(w->ddp);
    double sum = rank;
    w->status[rank] = trek_comm_all_reduce_scalar(comm, &sum, TREK_REDUCTION_SUM);
    return trek_comm_rank(comm) == rank && sum == 3 ? TREK_OK : TREK_ERR_STATE;
}

/* The communicator is each rank's own; the model outlives the wrapper, unless somebody owns that. */
static void communicators_and_models_of_a_wrapper(void **state)
{
    wrapped w;
    wrap(&w, 3, TREK_F32, NULL);
    assert_int_equal(trek_ranks_run(trek_ddp_ranks(w.ddp), sum_of_ranks, &w), TREK_OK);
    assert_int_equal(trek_comm_world_size(trek_ddp_comm(w.ddp)), 3);
    assert_null(trek_ddp_comm(NULL));
    trek_module *model = trek_ddp_unwrap(&w.ddp);
    assert_null(w.ddp);
    assert_ptr_equal(model, w.models[0]);
    w.ddp = trek_ddp_wrap_process(model, NULL, NULL); /* it may be wrapped again */
    assert_null(trek_ddp_comm(w.ddp));
    trek_module *parent = trek_nn_sequential((trek_module *[]){ trek_ddp_module(w.ddp) }, 1);
    assert_null(trek_ddp_unwrap(&w.ddp));
    FAILS(trek_error_status(), TREK_ERR_STATE, "belongs to another module");
    trek_module_free(&parent);
    trek_ddp *none = NULL;
    assert_null(trek_ddp_unwrap(&none));
    FAILS(trek_error_status(), TREK_ERR_ARGUMENT, "wrapper");
}

typedef struct grouped {
    trek_comm *comm;
    bool good;
} grouped;

/* Ranks 2, 0 and 3, 1: each wrapper is of its group alone, takes the values of the group's first rank, and means its gradients.
 */
static void *wrap_in_a_group(void *arg)
{
    grouped *g = arg;
    int rank = trek_comm_rank(g->comm), first = 2 + rank % 2;
    trek_scope scope = trek_scope_begin();
    trek_comm *group = trek_comm_split(g->comm, rank % 2, -rank);
    trek_module *model = ddp_net_new(TREK_F64, 0);
    trek_init_constant(((ddp_net *)model)->w1, rank);
    trek_ddp *ddp = trek_ddp_wrap_process(model, group, NULL);
    trek_comm_free(&group); /* the wrapper has a handle of its own */
    if (!ddp) { /* the model is freed, too */
        trek_scope_end(scope);
        return NULL;
    }
    g->good = trek_comm_world_size(trek_ddp_comm(ddp)) == 2 && trek_ddp_rank(ddp) == (rank < 2);
    double *values = test_read(trek_var_data(((ddp_net *)model)->w1));
    trek_var *b1 = ((ddp_net *)model)->b1;
    trek_backward(trek_sum(trek_mul_scalar(b1, rank), trek_dims_all(), false));
    g->good = g->good && values[0] == first && trek_ddp_reduce_gradients(ddp) == TREK_OK;
    free(values);
    values = trek_var_grad(b1) ? test_read(trek_var_data(trek_var_grad(b1))) : NULL;
    g->good = g->good && values && values[0] == first - 1; /* the mean of first and first - 2 */
    free(values);
    trek_ddp_free(&ddp);
    trek_scope_end(scope);
    return NULL;
}

static void wrappers_of_groups(void **state)
{
    trek_comm *comms[4];
    pthread_t threads[4];
    grouped all[4];
    assert_int_equal(trek_comm_local(test_devices(), 4, comms), TREK_OK);
    for (int r = 0; r < 4; r++) {
        all[r] = (grouped){ .comm = comms[r] };
        assert_int_equal(pthread_create(&threads[r], NULL, wrap_in_a_group, &all[r]), 0);
    }
    for (int r = 0; r < 4; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < 4; r++) {
        assert_true(all[r].good);
        trek_comm_free(&comms[r]);
    }
}

static void set(trek_module *m, const char *name, double a, double b, double c, double d)
{
    trek_tensor *t = test_values((double[]){ a, b, c, d }, trek_dims(4), TREK_F32);
    assert_int_equal(trek_tensor_copy_from(trek_var_data(trek_module_find(m, name)), t), TREK_OK);
    trek_tensor_release(t);
}

static void buffers_merge_by_count(void **state)
{
    trek_module *models[3] = { normed(), normed(), normed() };
    trek_ddp *ddp = trek_ddp_wrap(models, 3, NULL);
    assert_non_null(ddp);
    double means[3][4] = { { 0, 1, 2, 3 }, { 4, 1, -2, 3.5 }, { NAN, NAN, NAN, NAN } };
    double vars[3][4] = { { 1, 2, 3, 4 }, { 1, 1, 1, 1 }, { NAN, NAN, NAN, NAN } };
    double counts[3] = { 6, 2, 0 };
    for (int r = 0; r < 3; r++) {
        set(models[r], "1.running_mean", means[r][0], means[r][1], means[r][2], means[r][3]);
        set(models[r], "1.running_var", vars[r][0], vars[r][1], vars[r][2], vars[r][3]);
        trek_tensor *seen = trek_tensor_full(trek_dims_none(), r == 2 ? 99 : 5 + r, TREK_I64, test_device());
        assert_int_equal(trek_tensor_copy_from(trek_var_data(trek_module_find(models[r], "1.num_batches_tracked")), seen),
                         TREK_OK);
        trek_tensor_release(seen);
    }
    assert_int_equal(trek_ddp_sync_buffers(ddp, counts), TREK_OK);
    for (int r = 0; r < 3; r++) {
        double *mean = test_read(trek_var_data(trek_module_find(models[r], "1.running_mean")));
        double *var = test_read(trek_var_data(trek_module_find(models[r], "1.running_var")));
        for (int i = 0; i < 4; i++) {
            double m = 0.75 * means[0][i] + 0.25 * means[1][i], d0 = means[0][i] - m, d1 = means[1][i] - m;
            assert_true(fabs(mean[i] - m) < 1e-6);
            assert_true(fabs(var[i] - (0.75 * (vars[0][i] + d0 * d0) + 0.25 * (vars[1][i] + d1 * d1))) < 1e-6);
        }
        free(mean);
        free(var);
        assert_true(trek_tensor_item(trek_var_data(trek_module_find(models[r], "1.num_batches_tracked"))) == 6);
    }
    set(models[0], "1.running_mean", 9, 9, 9, 9);
    assert_int_equal(trek_ddp_sync_buffers(ddp, (double[]){ 1, 0, 0 }), TREK_OK); /* rank 0's */
    for (int r = 1; r < 3; r++)
        assert_true(same_values(models[0], models[r], "1.running_mean"));
    assert_int_equal(trek_ddp_sync_buffers(ddp, NULL), TREK_OK);
    assert_true(same_values(models[0], models[2], "1.running_var")); /* equal ones keep their bits */
    FAILS(trek_ddp_sync_buffers(ddp, (double[]){ 0, 0, 0 }), TREK_ERR_ARGUMENT, "");
    trek_ddp_free(&ddp);
}

/* --- what is refused, and that all ranks learn of it ----------------------------------------------------- */

typedef struct attempt {
    int world;
    trek_module *models[MAX_WORLD];
    trek_comm *comms[MAX_WORLD];
    trek_status status[MAX_WORLD];
    char message[MAX_WORLD][256];
} attempt;

typedef struct thread_arg {
    attempt *j;
    int rank;
} thread_arg;

static void *wrap_only(void *arg)
{
    thread_arg *a = arg;
    trek_ddp *ddp = trek_ddp_wrap_process(a->j->models[a->rank], a->j->comms[a->rank], NULL);
    a->j->status[a->rank] = ddp ? TREK_ERR_STATE : trek_error_status();
    snprintf(a->j->message[a->rank], sizeof a->j->message[a->rank], "%.255s", trek_error_status() != TREK_OK ? trek_error() : "");
    trek_error_clear();
    trek_ddp_free(&ddp);
    return NULL;
}

static void wrap_on_threads(attempt *j)
{
    pthread_t threads[MAX_WORLD];
    thread_arg args[MAX_WORLD];
    assert_int_equal(trek_comm_local(test_devices(), j->world, j->comms), TREK_OK);
    for (int r = 0; r < j->world; r++) {
        args[r] = (thread_arg){ j, r };
        assert_int_equal(pthread_create(&threads[r], NULL, wrap_only, &args[r]), 0);
    }
    for (int r = 0; r < j->world; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < j->world; r++)
        trek_comm_free(&j->comms[r]);
}

static void replicas_that_differ(void **state)
{
    static attempt j;
    j = (attempt){ .world = 3 };
    for (int r = 0; r < 3; r++) /* every rank is told the first parameter that differs on the first rank that does */
        j.models[r] = ddp_net_new_with(TREK_F32, 0, r == 1 ? HIDDEN + 1 : HIDDEN);
    wrap_on_threads(&j);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(j.status[r], TREK_ERR_ARGUMENT);
        assert_non_null(strstr(
            j.message[r], "parameter 0 is \"w1\" [10, 6] f32 in rank 1, \"w1\" [9, 6] f32 in"));
    }
    j = (attempt){ .world = 2, .models = { ddp_net_new(TREK_F32, 0), ddp_net_new(TREK_F64, 0) } };
    wrap_on_threads(&j);
    for (int r = 0; r < 2; r++)
        assert_non_null(strstr(j.message[r], "parameter 0 is \"w1\" [9, 6] f64 in rank 1, \"w1\" [9, 6] f32 in"));
    j = (attempt){ .world = 2, .models = { ddp_net_new(TREK_F32, 0), NULL } }; /* one cannot even begin */
    wrap_on_threads(&j);
    assert_int_equal(j.status[0], TREK_ERR_PEER);
    assert_int_equal(j.status[1], TREK_ERR_ARGUMENT);

    trek_module *models[2] = { normed(), ddp_net_new(TREK_F32, 0) };
    assert_null(trek_ddp_wrap(models, 2, NULL)); /* they are gone */
    expect_error(TREK_ERR_ARGUMENT, "");
    models[0] = models[1] = normed();
    assert_null(trek_ddp_wrap(models, 2, NULL));
    assert_non_null(strstr(trek_error(), "given the same one"));
    trek_error_clear();
    models[0] = normed(), models[1] = normed();
    assert_null(trek_ddp_wrap(models, 2, &(trek_ddp_opts){ .bucket_bytes = -3 }));
    trek_error_clear();
    for (int shard = TREK_SHARD_GRADIENTS; shard <= TREK_SHARD_PARAMETERS; shard++) {
        models[0] = normed(), models[1] = normed();
        REFUSED(trek_ddp_wrap(models, 2, &(trek_ddp_opts){ .shard = (trek_shard)shard }), TREK_ERR_UNSUPPORTED,
                "trek_trainer_setup divides them");
    }
}

typedef enum mistake { WELL, OWN_ERROR, BAD_COUNT, FROZEN, NO_LOSS } mistake;

static struct {
    wrapped w;
    mistake mistake[3];
    bool backward;
    trek_status status[3];
    char message[3][256];
} trial;

static trek_status trial_rank(int rank, void *arg)
{
    ddp_net *m = (ddp_net *)trial.w.models[rank];
    double counts[3] = { 1, 1, 1 };
    trek_scope scope = trek_scope_begin();
    trek_var *loss = ddp_loss_of(&m->base, 1, 3 * rank, 3, TREK_F64);
    if (!trial.backward)
        trek_backward(loss);
    if (trial.mistake[rank] == OWN_ERROR)
        trek_reshape(loss, trek_dims(7));
    if (trial.mistake[rank] == BAD_COUNT)
        counts[rank] = -1;
    if (trial.mistake[rank] == FROZEN)
        trek_var_set_requires_grad(m->b2, false);
    trial.status[rank] = trial.backward
                             ? trek_ddp_backward_weighted(trial.w.ddp, trial.mistake[rank] == NO_LOSS ? NULL : loss, counts[rank])
                             : trek_ddp_reduce_gradients_weighted(trial.w.ddp, counts);
    snprintf(trial.message[rank], sizeof trial.message[rank], "%.255s", trek_error_status() ? trek_error() : "");
    trek_error_clear();
    trek_var_set_requires_grad(m->b2, true);
    trek_scope_end(scope);
    return TREK_OK;
}

static void run_trial(mistake mistake, int who)
{
    for (int r = 0; r < 3; r++)
        trial.mistake[r] = r == who ? mistake : WELL;
    for (int r = 0; r < 3; r++)
        for (trek_var **p = &((ddp_net *)trial.w.models[r])->w1; p <= &((ddp_net *)trial.w.models[r])->b2; p++)
            trek_var_zero_grad(*p);
    assert_int_equal(trek_ranks_run(trek_ddp_ranks(trial.w.ddp), trial_rank, NULL), TREK_OK);
}

/* Who makes a mistake is told so, the others who it was; gradients stay each rank's own; the next time all is well. */
static void mistakes_of_one_rank(void **state)
{
    for (int mode = 0; mode < 3; mode++) {
        wrap(&trial.w, 3, TREK_F64, &(trek_ddp_opts){ .overlap = mode == 2 });
        trial.backward = mode > 0;
        for (int mistake = OWN_ERROR; mistake <= NO_LOSS; mistake++)
            for (int who = 0; who < 3; who++) {
                if (mistake == NO_LOSS && !trial.backward)
                    continue;
                run_trial((enum mistake)mistake, who);
                for (int r = 0; r < 3; r++) {
                    bool all = mistake == FROZEN;
                    if (r == who || all)
                        assert_int_equal(trial.status[r], mistake == OWN_ERROR ? TREK_ERR_SHAPE : TREK_ERR_ARGUMENT);
                    else
                        assert_int_equal(trial.status[r], TREK_ERR_PEER);
                    char name[16];
                    snprintf(name, sizeof name, "rank %d", who);
                    if (r != who)
                        assert_non_null(strstr(trial.message[r], name));
                    if (mistake == FROZEN)
                        assert_non_null(strstr(trial.message[r], "\"b2\""));
                }
                if (!trial.backward) { /* nothing was touched */
                    trek_var *grad0 = trek_var_grad(((ddp_net *)trial.w.models[0])->w1),
                             *grad1 = trek_var_grad(((ddp_net *)trial.w.models[1])->w1);
                    assert_false(test_same_bits(trek_var_data(grad0), trek_var_data(grad1)));
                }
            }
        run_trial(WELL, -1);
        for (int r = 0; r < 3; r++)
            assert_int_equal(trial.status[r], TREK_OK);
        assert_true(test_same_bits(trek_var_data(trek_var_grad(((ddp_net *)trial.w.models[0])->w1)),
                                   trek_var_data(trek_var_grad(((ddp_net *)trial.w.models[2])->w1))));
        trek_ddp_free(&trial.w.ddp);
    }
}

static void counts_that_are_refused(void **state)
{
    wrapped w;
    wrap(&w, 2, TREK_F64, NULL);
    static const double bad[][2] = { { 0, 0 }, { -1, 2 }, { 1, NAN }, { INFINITY, 1 } };
    for (int k = 0; k < 4; k++) {
        FAILS(trek_ddp_reduce_gradients_weighted(w.ddp, bad[k]), TREK_ERR_ARGUMENT, "");
        FAILS(trek_ddp_sync_buffers(w.ddp, bad[k]), TREK_ERR_ARGUMENT, "");
    }
    FAILS(trek_ddp_reduce_gradients_weighted(w.ddp, NULL), TREK_ERR_ARGUMENT, "");
    assert_int_equal(trek_ddp_reduce_gradients(w.ddp), TREK_OK); /* of nothing */
    FAILS(trek_ddp_reduce_gradients(NULL), TREK_ERR_ARGUMENT, "");
    trek_ddp_free(&w.ddp);
    w.models[0] = ddp_net_new(TREK_F64, 0);
    w.ddp = trek_ddp_wrap_process(w.models[0], NULL, NULL);
    assert_int_equal(trek_ddp_reduce_gradients(w.ddp), TREK_OK);
    FAILS(trek_ddp_reduce_gradients_weighted(w.ddp, (double[]){ 0 }), TREK_ERR_ARGUMENT, "");
    assert_int_equal(trek_ddp_sync_params(w.ddp), TREK_OK);
    assert_int_equal(trek_ddp_sync_buffers(w.ddp, NULL), TREK_OK);
    trek_ddp_free(&w.ddp);
    trek_ddp_free(&w.ddp);
}

/* --- small things ---------------------------------------------------------------------------------------- */

static trek_status small_rank(int rank, void *arg)
{
    trek_comm *comm = trek_ranks_comm(arg, rank);
    double sum = rank + 1, mean = rank, most = -rank;
    int64_t first, count;
    if (trek_comm_all_reduce_scalar(comm, &sum, TREK_REDUCTION_SUM) != TREK_OK ||
        trek_comm_all_reduce_scalar(comm, &mean, TREK_REDUCTION_MEAN) != TREK_OK ||
        trek_comm_all_reduce_scalar(comm, &most, TREK_REDUCTION_MAX) != TREK_OK)
        return trek_error_status();
    if (sum != 6 || mean != 1 || most != 0)
        return trek_fail(TREK_ERR_STATE, "%g %g %g", sum, mean, most);
    static const int64_t firsts[] = { 0, 4, 7 }, counts[] = { 4, 3, 3 };
    if (trek_comm_samples(comm, 10, &first, &count) != TREK_OK || first != firsts[rank] || count != counts[rank])
        return trek_fail(TREK_ERR_STATE, "%d: %d of %d", rank, (int)count, (int)first);
    return TREK_OK;
}

static void numbers_and_samples_of_ranks(void **state)
{
    trek_ranks *ranks = trek_ranks_new(test_devices(), 3);
    trek_status status = trek_ranks_run(ranks, small_rank, ranks);
    if (status != TREK_OK)
        print_error("%s\n", trek_error());
    assert_int_equal(status, TREK_OK);
    trek_ranks_free(&ranks);
    int64_t first, count;
    assert_int_equal(trek_comm_samples(NULL, 5, &first, &count), TREK_OK);
    assert_int_equal((int)(10 * first + count), 5);
    FAILS(trek_comm_samples(NULL, -5, &first, &count), TREK_ERR_ARGUMENT, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(used_by_some_counts_as_zero_elsewhere), cmocka_unit_test(gradients_that_share_memory),
        cmocka_unit_test(large_parameters_go_in_pieces), cmocka_unit_test(sums_over_ranks),
        cmocka_unit_test(low_precision_is_summed_wide), cmocka_unit_test(parameters_follow_rank_0),
        cmocka_unit_test(parameters_follow_any_root), cmocka_unit_test(communicators_and_models_of_a_wrapper),
        cmocka_unit_test(wrappers_of_groups),
        cmocka_unit_test(buffers_merge_by_count), cmocka_unit_test(replicas_that_differ), cmocka_unit_test(mistakes_of_one_rank),
        cmocka_unit_test(counts_that_are_refused), cmocka_unit_test(numbers_and_samples_of_ranks),
    };
    alarm(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
