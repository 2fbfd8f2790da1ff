/* SPDX-License-Identifier: Apache-2.0 */
/* trek_ddp_optimizer: ranks that divide the optimizer's state against ranks that each keep all of it, to the bit, as threads and
 * as processes: whatever optimizer, dtypes, groups, clipping, loss scaling; state saved by some and loaded by others; what fails
 * in one rank; what is refused. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "distributed/ddp.h"
#include "nn/params.h"
#include "optim/optimizer_internal.h"
#include "optim/optimizers.h"
#include "optim/scaler.h"
#include "tensor/scope.h"
#include "tests/support/ddp_net.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { RANKS = 4, STEPS = 3, WIDE = 40, MOST = 4096, OPTIMIZERS = 10, MUON = 9, ADAFACTOR = 8 };

typedef struct run {
    int ranks, broken;       /* broken: in step 1 the last rank comes with an error; 2: in loading, too */
    bool sharded, groups, clip, scaled, overlaps;
    trek_dtype dtype, state;
    int optimizer;
    int64_t bucket_bytes;
    const trek_state *load;  /* NULL: from the beginning */
    trek_tensor *const *from; /* parameters to begin with; NULL: the model's */
} run;

typedef struct result {
    int n;
    double values[MOST];
    trek_state *state;
    trek_tensor *params[16];
    int64_t kept, all;       /* elements of its first state, and of parameters */
} result;

static trek_optimizer_spec spec_of(const run *c)
{
    const trek_optimizer_spec specs[] = {
        trek_adamw(&(trek_adam_opts){ .lr = 0.02 }), trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9, .nesterov = true }),
        trek_adam(&(trek_adam_opts){ .lr = 0.02, .amsgrad = true }),
        trek_rmsprop(&(trek_rmsprop_opts){ .lr = 0.01, .momentum = 0.5 }),
        trek_lion(&(trek_lion_opts){ .lr = 0.003 }), trek_adagrad(&(trek_adagrad_opts){ .lr = 0.05 }),
        trek_lamb(&(trek_lamb_opts){ .lr = 0.02, .weight_decay = 0.01 }),
        trek_lars(&(trek_lars_opts){ .lr = 0.1, .trust_coefficient = 0.1, .momentum = 0.9 }),
        trek_adafactor(&(trek_adafactor_opts){ .lr = 0.02 }), trek_muon(&(trek_muon_opts){ .lr = 0.02 }),
    };
    trek_optimizer_spec spec = specs[c->optimizer % OPTIMIZERS];
    return trek_with_state(spec, spec.klass->whole ? TREK_F32 : c->state); /* of whole parameters it is kept in full */
}

/* For biases, which Muon has AdamW for. */
static trek_optimizer_spec vectors_of(const run *c)
{
    trek_optimizer_spec spec = c->optimizer % OPTIMIZERS == MUON ? trek_muon(&(trek_muon_opts){ .lr = 0.02, .adam = true })
                                                                 : spec_of(&(run){ .optimizer = c->optimizer });
    spec.options[0] *= 0.5;
    return spec;
}

/* --- one rank --------------------------------------------------------------------------------------------------- */

typedef struct world_run {
    const run *c;
    trek_ddp *ddp;
    result *results;         /* [ranks] */
} world_run;

static void fail_rank(const char *what) { fprintf(stderr, "%s: %s\n", what, trek_error()), abort(); }

static void expect(trek_status got, trek_status expected, const char *what)
{
    if (got != expected)
        fail_rank(what);
    if (got != TREK_OK)
        trek_error_clear();
}

static void each_param(trek_module *model, const run *c, result *to, bool begins)
{
    trek_params *params = trek_module_params(model);
    to->n = 0;
    for (int k = 0; k < trek_params_count(params); k++) {
        trek_tensor *own = trek_var_data(trek_params_var(params, k));
        if (begins && c->from)
            expect(trek_tensor_copy_from(own, c->from[k]), TREK_OK, "copy");
        double *values = test_read(own);
        for (int64_t i = 0; i < trek_tensor_numel(own); i++)
            to->values[to->n++] = values[i];
        free(values);
    }
    trek_params_free(&params);
}

static void make_step(const world_run *w, trek_module *model, trek_optimizer *optimizer, trek_grad_scaler *scaler, int rank,
                      int k)
{
    const run *c = w->c;
    bool fails = c->broken && k == 1 && !(scaler && c->clip);
    trek_params *params = trek_module_params(model);
    for (int again = 0; again < (fails ? 2 : 1); again++) {
        bool breaks = fails && !again;
        trek_scope scope = trek_scope_begin();
        trek_var *loss = ddp_loss_of(model, (uint32_t)k, 5 * rank, 5, c->dtype);
        loss = scaler ? trek_grad_scaler_scale(scaler, loss) : loss;
        if (c->overlaps) {
            expect(trek_ddp_backward(w->ddp, loss), TREK_OK, "backward");
        } else {
            expect(trek_backward(loss), TREK_OK, "backward");
            expect(trek_ddp_reduce_gradients(w->ddp), TREK_OK, "reduce");
        }
        trek_scope_end(scope);
        if (scaler && c->clip)
            expect(trek_grad_scaler_unscale(scaler, optimizer), TREK_OK, "unscale");
        if (c->clip)
            trek_clip_grad_norm(params, 0.1);
        if (breaks && rank == c->ranks - 1)
            trek_fail(TREK_ERR_IO, "the last rank fails");
        trek_status expected = !breaks ? TREK_OK : rank == c->ranks - 1 ? TREK_ERR_IO : TREK_ERR_PEER;
        expect(scaler ? trek_grad_scaler_step(scaler, optimizer) : trek_optimizer_step(optimizer), expected, "step");
        if (scaler && !breaks)
            expect(trek_grad_scaler_update(scaler), TREK_OK, "update");
        expect(trek_optimizer_zero_grad(optimizer), TREK_OK, "zero");
    }
    trek_params_free(&params);
}

static trek_status train_rank(int rank, void *arg)
{
    const world_run *w = arg;
    const run *c = w->c;
    result *to = &w->results[rank];
    trek_module *model = trek_ddp_ranks(w->ddp) ? trek_ddp_replica_module(w->ddp, rank) : trek_ddp_module(w->ddp);
    each_param(model, c, to, true);
    trek_optimizer *optimizer = trek_ddp_optimizer(w->ddp, spec_of(c));
    if (!optimizer)
        fail_rank("optimizer");
    if ((c->groups || c->optimizer % OPTIMIZERS == MUON) && trek_optimizer_vectors(optimizer, vectors_of(c)) < 0)
        fail_rank("groups");
    if (c->load && c->broken == 2) { /* the last rank has none to load */
        trek_status expected = rank == c->ranks - 1 ? TREK_ERR_ARGUMENT : TREK_ERR_PEER;
        expect(trek_optimizer_load(optimizer, rank == c->ranks - 1 ? NULL : c->load), expected, "load none");
    }
    if (c->load)
        expect(trek_optimizer_load(optimizer, c->load), TREK_OK, "load");
    trek_grad_scaler *scaler = c->scaled ? trek_grad_scaler_new(&(trek_grad_scaler_opts){
        .init_scale = c->optimizer % OPTIMIZERS == ADAFACTOR ? 0x1p40 : 0x1p127, .backoff_factor = 0x1p-60,
            .growth_interval = 2 }) : NULL;
    for (int k = 0; k < STEPS; k++)
        make_step(w, model, optimizer, scaler, rank, k);
    to->state = trek_optimizer_save(optimizer);
    if (!to->state)
        fail_rank("save");
    to->kept = optimizer->state[0][0] ? trek_tensor_numel(optimizer->state[0][0]) : 0;
    to->all = optimizer->arena->parts[0].count;
    trek_params *params = trek_module_params(model);
    for (int k = 0; k < trek_params_count(params); k++)
        to->params[k] = trek_tensor_clone(trek_var_data(trek_params_var(params, k)));
    trek_params_free(&params);
    each_param(model, c, to, false);
    trek_grad_scaler_free(&scaler);
    trek_optimizer_free(&optimizer);
    return trek_error_status();
}

static trek_ddp_opts opts_of(const run *c)
{
    return (trek_ddp_opts){ .bucket_bytes = c->bucket_bytes, .shard = c->sharded ? TREK_SHARD_STATE : TREK_SHARD_NONE,
                            .overlap = c->overlaps ? 1 : TREK_OFF };
}

static void train(const run *c, result *results)
{
    trek_module *models[RANKS];
    for (int r = 0; r < c->ranks; r++)
        models[r] = ddp_net_new_with(c->dtype, 0, WIDE);
    trek_ddp_opts opts = opts_of(c);
    trek_ddp *ddp = trek_ddp_wrap(models, c->ranks, &opts);
    assert_non_null(ddp);
    world_run w = { c, ddp, results };
    trek_status status = c->ranks > 1 ? trek_ranks_run(trek_ddp_ranks(ddp), train_rank, &w) : train_rank(0, &w);
    SUCCEEDS(status);
    trek_ddp_free(&ddp);
}

static void drop(result *results, int n)
{
    for (int r = 0; r < n; r++) {
        trek_state_free(&results[r].state);
        for (int k = 0; k < 16; k++)
            trek_tensor_release(results[r].params[k]);
        memset(&results[r], 0, sizeof results[r]);
    }
}

static void expect_same_state(const trek_state *a, const trek_state *b, const char *what)
{
    assert_int_equal(trek_state_count(a), trek_state_count(b));
    for (int k = 0; k < trek_state_count(a); k++)
        if (!test_same_bits(trek_state_tensor(a, k), trek_state_find(b, trek_state_name(a, k))))
            fail_msg("%s: %s", what, trek_state_name(a, k));
}

static void expect_same(const run *c, const result *got, const result *expected)
{
    char text[160];
    snprintf(text, sizeof text, "%d ranks, %s, state %s, optimizer %d%s%s%s%s, buckets %d", c->ranks, trek_dtype_name(c->dtype),
             trek_dtype_name(c->state), c->optimizer, c->groups ? ", groups" : "", c->clip ? ", clip" : "",
             c->scaled ? ", scaled" : "", c->overlaps ? ", overlaps" : "", (int)c->bucket_bytes);
    int64_t kept = 0;
    for (int r = 0; r < c->ranks; r++) {
        if (got[r].n != expected[0].n || memcmp(got[r].values, expected[0].values, (size_t)got[r].n * sizeof(double)) != 0)
            fail_msg("%s: parameters of rank %d", text, r);
        expect_same_state(got[r].state, expected[0].state, text);
        kept += got[r].kept;
        assert_true(spec_of(c).klass->whole || got[r].kept == got[r].all / c->ranks);
    }
    if (spec_of(c).klass->whole && (kept != expected[0].kept || got[c->ranks - 1].kept == kept)) /* each number once */
        fail_msg("%s: %d numbers, in parts %d", text, (int)expected[0].kept, (int)kept);
}

static run draw(int k)
{
    static const trek_dtype dtypes[] = { TREK_F32, TREK_BF16, TREK_F64, TREK_F16 };
    static const trek_dtype states[] = { TREK_F32, TREK_BF16, TREK_U8 };
    uint32_t h = test_hash((uint32_t)k);
    return (run){ .ranks = 2 + k % 3, .dtype = dtypes[h & 3], .state = states[(h >> 2) % 3], .optimizer = k, .groups = h >> 5 & 1,
                  .clip = h >> 6 & 1, .scaled = h >> 7 & 1, .overlaps = (h >> 8 & 3) == 0, .bucket_bytes = 1024 << (h >> 10 & 3),
                  .broken = h >> 13 & 1 };
}

/* --- the tests -------------------------------------------------------------------------------------------------- */

static void same_as_undivided(void **state)
{
    static result got[RANKS], expected[RANKS];
    for (int k = 0; k < (test_short() ? 20 : 60); k++) {
        run c = draw(k);
        c.broken = 0;
        train(&c, expected);
        c.sharded = true;
        c.broken = k % 2; /* an error of one rank changes nothing */
        train(&c, got);
        expect_same(&c, got, expected);
        drop(got, RANKS);
        drop(expected, RANKS);
    }
}

/* Saved by some, loaded by other numbers of ranks, in parts or not. */
static void any_number_of_ranks(void **state)
{
    static result first[RANKS], got[RANKS], expected[RANKS];
    for (int k = 0; k < 30; k++) {
        run c = draw(k);
        c.broken = 0, c.scaled = false;
        c.sharded = k & 1;
        train(&c, first);
        c.load = first[0].state;
        c.from = first[0].params;
        c.ranks = 2 + (k / 3 + k) % 3;
        c.sharded = false;
        train(&c, expected);
        c.sharded = true;
        c.broken = 2 * (k % 3 == 0);
        train(&c, got);
        expect_same(&c, got, expected);
        drop(first, RANKS);
        drop(got, RANKS);
        drop(expected, RANKS);
    }
}

static trek_status refuse_rank(int rank, void *arg)
{
    trek_ddp *ddp = arg;
    const trek_optimizer_spec adam = trek_adam(&(trek_adam_opts){ .lr = 0.1 });
    if (trek_ddp_optimizer(ddp, trek_with_state(trek_lamb(NULL), TREK_U8)) ||
        !strstr(trek_error(), "whole parameters"))
        fail_rank("state in fewer bits");
    trek_error_clear();
    if (trek_ddp_optimizer(ddp, rank == 1 ? trek_adam(&(trek_adam_opts){ .lr = 0.2 }) : adam) || !strstr(trek_error(), "lr is"))
        fail_rank("another rate");
    trek_error_clear();
    if (rank == 0)
        trek_fail(TREK_ERR_IO, "rank 0 fails");
    if (trek_ddp_optimizer(ddp, adam))
        fail_rank("after a failure");
    expect(trek_error_status(), rank == 0 ? TREK_ERR_IO : TREK_ERR_PEER, "a failure");
    trek_optimizer *optimizer = trek_ddp_optimizer(ddp, adam);
    if (!optimizer)
        fail_rank("optimizer");
    trek_optimizer_free(&optimizer);
    return TREK_OK;
}

static void refused(void **state)
{
    trek_module *models[2] = { ddp_net_new(TREK_F32, 0), ddp_net_new(TREK_F32, 0) };
    trek_ddp *ddp = trek_ddp_wrap(models, 2, &(trek_ddp_opts){ .shard = TREK_SHARD_STATE });
    REFUSED(trek_ddp_optimizer(ddp, trek_adam(&(trek_adam_opts){ .lr = 0.1 })), TREK_ERR_STATE, "");
    assert_null(trek_ddp_optimizer(NULL, trek_adam(&(trek_adam_opts){ .lr = 0.1 })));
    trek_error_clear();
    assert_int_equal(trek_ranks_run(trek_ddp_ranks(ddp), refuse_rank, ddp), TREK_OK);
    trek_ddp_free(&ddp);
    trek_module *one = ddp_net_new(TREK_F32, 0);
    REFUSED(trek_ddp_wrap(&one, 1, &(trek_ddp_opts){ .shard = (trek_shard)7 }), TREK_ERR_ARGUMENT, "");
}

/* --- processes --------------------------------------------------------------------------------------------------- */

static void train_process(const run *c, trek_comm *comm, int rank, result *to)
{
    static result results[RANKS];
    trek_ddp_opts opts = opts_of(c);
    trek_ddp *ddp = trek_ddp_wrap_process(ddp_net_new_with(c->dtype, 0, WIDE), comm, &opts);
    if (!ddp)
        fail_rank("wrap");
    world_run w = { c, ddp, results };
    expect(train_rank(rank, &w), TREK_OK, "train");
    *to = results[rank];
    memset(results, 0, sizeof results);
    trek_ddp_free(&ddp);
}

static int play(const part *me)
{
    static result got, expected, other;
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = me->process, .world_size = me->processes, .address = me->address,
                                                        .port = me->port, .token = "sesame", .deadline_s = 20 });
    if (!comm)
        return 3;
    if (strcmp(me->detail, "options") == 0) { /* not all say it */
        trek_ddp *ddp = trek_ddp_wrap_process(ddp_net_new(TREK_F32, 0), comm,
                                              &(trek_ddp_opts){ .shard = me->process == 1 ? TREK_SHARD_STATE : TREK_SHARD_NONE });
        printf("%s\n", trek_error());
        trek_comm_free(&comm);
        return ddp != NULL;
    }
    for (int k = atoi(me->detail); k < atoi(me->detail) + 5; k++) {
        run c = draw(k);
        c.ranks = me->processes;
        c.broken = 0;
        train_process(&c, comm, me->process, &expected);
        c.sharded = true;
        c.broken = k & 1;
        train_process(&c, comm, me->process, &got);
        run again = c;
        again.load = got.state, again.from = got.params;
        again.broken = k & 2;
        train_process(&again, comm, me->process, &other);
        bool same = got.n == expected.n && memcmp(got.values, expected.values, (size_t)got.n * sizeof(double)) == 0;
        expect_same_state(got.state, expected.state, "in a process");
        drop(&other, 1);
        drop(&got, 1);
        drop(&expected, 1);
        if (!same)
            return 4;
    }
    printf("the same\n");
    trek_comm_free(&comm);
    return 0;
}

static void in_processes(void **state)
{
    static world w;
    char detail[16];
    for (int k = 0; k < 4; k++) {
        int n = k == 3 ? 2 : 2 + k % 2;
        snprintf(detail, sizeof detail, "%d", 5 * k);
        processes_run_all(&w, n, "ddp", k == 3 ? "options" : detail, -1, NULL);
        for (int p = 0; p < n; p++)
            if (w.code[p] != 0 || !strstr(w.text[p], k == 3 ? ".shard is" : "the same"))
                FAIL_WORLD(&w, "process %d of %d", p, n);
    }
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = { cmocka_unit_test(same_as_undivided), cmocka_unit_test(any_number_of_ranks),
                                        cmocka_unit_test(refused), cmocka_unit_test(in_processes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
