/* SPDX-License-Identifier: Apache-2.0 */
/* Short runs drawn at random: models, ranks, policies, options, moments of stopping, delays, and things that fail. Each ends in
 * time, with an error that says what has happened or with finite parameters and every sample seen once an epoch; no thread and
 * no memory is left. TREK_TEST_SEED: that run alone; TREK_TEST_LONG: 500 of them. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/dataset_class.h"
#include "data/loader_position.h"
#include "distributed/run.h"
#include "distributed/run_progress.h"
#include "graph/flow.h"
#include "graph/observe.h"
#include "nn/layers.h"
#include "nn/state_tensors.h"
#include "optim/optimizers.h"
#include "tensor/log.h"
#include "tests/support/left.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { FEATURES = 5, WIDE = 9, MOST_SAMPLES = 200, SECONDS = 120 };

typedef enum fault { NOTHING, BAD_STEP, BAD_EPOCH, BAD_METRICS, BAD_CHECKPOINT, NO_FOLDER, BAD_BUILD, BAD_READ, NO_MEMORY,
                     FAULTS } fault;
static const char *const fault_names[] = { "nothing", "training function", "on_epoch", "on_metrics", "on_checkpoint", "folder",
                                           "build_model", "dataset", "memory" };

/* A run, and what is known of it while it goes on. */
static struct {
    uint64_t seed;
    trek_run_opts opts;
    double shares[3];
    int model;               /* 0: two layers; 1: batch norm; 2: dropout */
    double dropout;
    bool says_why;           /* what fails has a message */
    fault fault;
    int64_t fault_at;        /* the call that fails, from 0 */
    int64_t fault_times;     /* allocations that fail: one is tried again after caches are emptied */
    atomic_llong calls;      /* of what may fail */
    atomic_bool struck;
    int64_t delay_us;
    int64_t stop_us;         /* -1: it is not stopped */
    int64_t samples;
    atomic_int seen[MOST_SAMPLES];
    atomic_llong steps;
    int64_t epochs;          /* that ended */
    bool resumed;
    char folder[64];
    char wrong[256];         /* found on another thread */
} c;

/* --- numbers -------------------------------------------------------------------------------------- */

static uint64_t draws;

static uint64_t number_below(uint64_t below, uint64_t seed) { return test_draw(&seed, below); }
static int64_t draw(int64_t n) { return (int64_t)number_below((uint64_t)n, c.seed * 1000003 + ++draws); }
static bool one_in(int64_t n) { return draw(n) == 0; }
static int64_t draw_log(int64_t most) /* 1 .. most, small ones often */
{
    int64_t n = (int64_t)exp((double)draw(1000000) * 1e-6 * log((double)most + 1));
    return n < 1 ? 1 : n > most ? most : n;
}

/* --- what fails -------------------------------------------------------------------------------------- */

/* Whether this call is the one. */
static bool strikes(fault f)
{
    if (c.fault != f || atomic_fetch_add(&c.calls, 1) != c.fault_at)
        return false;
    atomic_store(&c.struck, true);
    return true;
}

static trek_status injected(void)
{
    return c.says_why ? trek_fail(TREK_ERR_CALLBACK, "injected: %s", fault_names[c.fault]) : TREK_ERR_CALLBACK;
}

/* --- data, model, functions ---------------------------------------------------------------------------- */

static int64_t data_length(const trek_dataset *self)
{
    return c.samples;
}

static trek_status data_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    const int64_t *indices = fetch->indices;
    int64_t n = fetch->n;
    if (strikes(BAD_READ))
        return trek_fail(TREK_ERR_IO, "injected: dataset");
    float x[MOST_SAMPLES * FEATURES], y[MOST_SAMPLES];
    for (int64_t k = 0; k < n; k++) {
        for (int f = 0; f < FEATURES; f++)
            x[k * FEATURES + f] = test_number(3, (uint32_t)(indices[k] * FEATURES + f));
        y[k] = test_number(4, (uint32_t)indices[k]);
    }
    out[0] = trek_tensor_from_data(x, trek_dims(n, FEATURES), TREK_F32, trek_cpu(0));
    out[1] = trek_tensor_from_data(y, trek_dims(n, 1), TREK_F32, trek_cpu(0));
    return out[0] && out[1] ? TREK_OK : trek_error_status();
}

static const char *const fields[] = { "x", "y" };
static const trek_dataset_class data_class = { .name = "numbers", .size = sizeof(trek_dataset), .length = data_length,
                                               .get = data_get, .n_fields = 2, .fields = fields };

static trek_graph *build(trek_device device, void *arg)
{
    if (strikes(BAD_BUILD)) {
        injected();
        return NULL;
    }
    trek_flow *flow = trek_flow_from(trek_nn_linear(FEATURES, WIDE, device));
    if (c.model == 1)
        flow = trek_flow_through(flow, trek_nn_batch_norm1d(WIDE, device));
    flow = trek_flow_through(flow, trek_nn_tanh());
    if (c.model == 2)
        flow = trek_flow_through(flow, trek_nn_dropout(c.dropout));
    return trek_flow_build(trek_flow_through(flow, trek_nn_linear(WIDE, 1, device)));
}

static trek_var *train_step(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    int64_t call = atomic_fetch_add(&c.steps, 1);
    if (strikes(BAD_STEP)) {
        injected();
        return NULL;
    }
    if (c.delay_us && number_below(16, c.seed + (uint64_t)call) == 0)
        usleep((useconds_t)number_below((uint64_t)c.delay_us, c.seed - (uint64_t)call));
    for (int64_t k = 0; k < trek_batch_size(batch) && trek_module_is_training(trek_graph_module(graph)); k++)
        atomic_fetch_add(&c.seen[trek_batch_indices(batch)[k]], 1);
    trek_record_sum("rows", (double)trek_batch_size(batch));
    return trek_mean(trek_square(trek_sub(output, trek_batch_get(batch, "y"))), trek_dims_all(), false);
}

static trek_status on_epoch(trek_graph *graph, int64_t epoch, void *arg)
{
    char aside[96];
    snprintf(aside, sizeof aside, "%s.aside", c.folder);
    if (strikes(NO_FOLDER) && rename(c.folder, aside) != 0)
        snprintf(c.wrong, sizeof c.wrong, "the folder cannot be moved");
    return strikes(BAD_EPOCH) ? injected() : TREK_OK;
}

static int64_t samples_of_epoch(void)
{
    return c.opts.drop_last ? c.samples - c.samples % c.opts.batch_size : c.samples;
}

/* Ranks that fail do not end it, as long as one is left. */
static bool may_lose(void)
{
    return c.opts.transport == TREK_TRANSPORT_HOST && c.opts.site == TREK_SITE_RANK && c.opts.trainer.ranks > 1;
}

/* Every sample once, or with drop_last as many as whole batches have; what a rank had that was lost, again. */
static trek_status on_metrics(const trek_epoch_metrics *m, void *arg)
{
    int64_t total = 0, of_ranks = 0;
    for (int64_t k = 0; k < c.samples; k++) {
        int times = atomic_exchange(&c.seen[k], 0);
        total += times;
        if ((times > 1 && !m->lost) || (times == 0 && !c.opts.drop_last))
            snprintf(c.wrong, sizeof c.wrong, "epoch %d: sample %d seen %d times", (int)m->epoch, (int)k, times);
    }
    for (int r = 0; r < m->ranks; r++)
        of_ranks += m->per_rank[r].samples;
    if (m->lost && may_lose() && total >= samples_of_epoch() && m->samples >= samples_of_epoch())
        total = of_ranks = samples_of_epoch();
    int64_t counted = m->lost && m->samples > total ? total : m->samples;
    if (total != samples_of_epoch() || (!c.resumed && (counted != total || of_ranks != total)))
        snprintf(c.wrong, sizeof c.wrong, "epoch %d: %d samples seen, %d counted, %d by the ranks, of %d", (int)m->epoch,
                 (int)total,
                 (int)m->samples, (int)of_ranks, (int)samples_of_epoch());
    if (m->epoch != c.epochs)
        snprintf(c.wrong, sizeof c.wrong, "epoch %d instead of %d", (int)m->epoch, (int)c.epochs);
    c.epochs++;
    c.resumed = false;
    return strikes(BAD_METRICS) ? injected() : TREK_OK;
}

static trek_status on_checkpoint(trek_graph *graph, int64_t epoch, const char *path, void *arg)
{
    if (access(path, R_OK) != 0 && !(c.fault == NO_FOLDER && atomic_load(&c.struck)))
        snprintf(c.wrong, sizeof c.wrong, "there is no %s", path);
    return strikes(BAD_CHECKPOINT) ? injected() : TREK_OK;
}

/* --- a run from a seed ---------------------------------------------------------------------------------- */

static trek_optimizer_spec draw_optimizer(void)
{
    switch (draw(3)) {
    case 0:
        return trek_adam(&(trek_adam_opts){ .lr = 0.01 });
    case 1:
        return trek_sgd(&(trek_sgd_opts){ .lr = 0.01, .momentum = 0.9 });
    default:
        return trek_rmsprop(&(trek_rmsprop_opts){ .lr = 0.01 });
    }
}

static void draw_trainer(trek_trainer_opts *t, trek_policy policy)
{
    t->ranks = 1 + (int)draw(3);
    t->devices = test_devices();
    t->average = one_in(3) ? TREK_AVERAGE_PARAMETERS : TREK_AVERAGE_GRADIENTS;
    t->accumulate = t->average == TREK_AVERAGE_GRADIENTS && one_in(3) ? 2 + (int)draw(2) : 0;
    t->max_grad_norm = one_in(2) ? 0.5 : 0;
    t->share_params = one_in(3) ? TREK_OFF : 0;
    if (policy != TREK_POLICY_SYNC && one_in(2)) {
        t->anchor = 1 + draw(3);
        t->max_anchor = 3;
    }
    if (policy != TREK_POLICY_SYNC && one_in(4))
        t->global_batch = 1 + draw(60), t->max_anchor = 0;
    if (one_in(4)) {
        t->shares = c.shares;
        t->n_shares = t->ranks;
        for (int r = 0; r < 3; r++)
            c.shares[r] = 1 + (double)draw(5);
    } else {
        t->balance = one_in(3) ? 1 : one_in(2) ? TREK_OFF : 0;
    }
}

static trek_outer_opts outer;

static void draw_transport(trek_run_opts *o)
{
    if (!one_in(3))
        return;
    o->transport = TREK_TRANSPORT_HOST;
    o->policy = o->policy == TREK_POLICY_CADENCE && one_in(2) ? TREK_POLICY_ASYNC : o->policy;
    o->max_lead = one_in(2) ? 0 : one_in(2) ? TREK_OFF : 1 + draw(3);
    outer = (trek_outer_opts){ .lr = 0.5, .momentum = 0.5, .bits = one_in(2) ? 8 : 0, .fragments = 1 + (int)draw(4) };
    o->outer = one_in(2) ? &outer : NULL;
    o->site = one_in(4) ? TREK_SITE_PROCESS : TREK_SITE_RANK;
}

static void draw_keeping(trek_run_opts *o)
{
    strcpy(c.folder, "/tmp/trek-run-XXXXXX");
    if (!mkdtemp(c.folder))
        fail_msg("no folder");
    o->checkpoint_folder = c.folder;
    o->checkpoint_every = draw(3);
    o->keep_last = one_in(3) ? TREK_OFF : (int)draw(3);
    o->keep_best = one_in(2);
    o->on_checkpoint = on_checkpoint;
}

static void draw_fault(void)
{
    c.says_why = one_in(2);
    c.fault = one_in(2) ? NOTHING : (fault)(1 + draw(FAULTS - 1));
    if (!c.folder[0] && (c.fault == BAD_CHECKPOINT || c.fault == NO_FOLDER))
        c.fault = BAD_STEP;
    c.fault_at = c.fault == BAD_BUILD ? draw(c.opts.trainer.ranks)
        : c.fault == BAD_STEP || c.fault == BAD_READ ? draw_log(3 * c.opts.epochs * (c.samples / c.opts.batch_size + 1)) - 1
        : c.fault == NO_MEMORY ? (one_in(2) ? draw_log(100) : 1 + draw(1000)) : draw(c.opts.epochs);
    c.fault_times = 1 + draw_log(100);
}

static void draw_run(uint64_t seed, trek_dataset *data)
{
    memset(&c, 0, sizeof c);
    c.seed = seed;
    draws = 0;
    trek_run_opts *o = &c.opts;
    c.samples = draw_log(MOST_SAMPLES);
    c.model = (int)draw(3);
    c.dropout = one_in(2) ? 0 : 0.3;
    *o = (trek_run_opts){ .build_model = build, .train_step = train_step, .dataset = data, .input = "x", .on_epoch = on_epoch,
                          .on_metrics = on_metrics, .optimizer = draw_optimizer(), .seed = (uint64_t)draw(1000) };
    o->epochs = 1 + draw(4);
    o->policy = one_in(2) ? TREK_POLICY_SYNC : TREK_POLICY_CADENCE;
    draw_transport(o);
    o->batch_size = one_in(8) ? c.samples + draw(20) : draw_log(40);
    o->batch_size = o->batch_size > MOST_SAMPLES ? MOST_SAMPLES : o->batch_size;
    o->drop_last = o->batch_size <= c.samples && one_in(3);
    o->shuffle = !one_in(4);
    o->prefetch = one_in(3) ? TREK_ZERO : (int)draw(4);
    o->workers = o->prefetch == TREK_ZERO ? 0 : (int)draw(4);
    o->schedule = one_in(3) ? trek_cosine_lr(0.01, 30, 0.001) : one_in(2) ? trek_step_lr(0.01, 5, 0.5) : o->schedule;
    o->lr_scale = one_in(4) ? 0.5 : 0;
    draw_trainer(&o->trainer, o->policy);
    if (o->transport == TREK_TRANSPORT_HOST) {
        o->trainer.accumulate = 0;
        o->trainer.shares = o->policy == TREK_POLICY_SYNC && o->site == TREK_SITE_RANK ? NULL : o->trainer.shares;
        o->trainer.n_shares = o->trainer.shares ? o->trainer.n_shares : 0;
    }
    if (one_in(2)) {
        o->evaluation = data;
        o->evaluation_batch = draw(30);
        o->evaluate_every = draw(3);
    }
    o->patience = one_in(6) ? 1 + draw(2) : 0;
    if (one_in(2))
        draw_keeping(o);
    draw_fault();
    c.delay_us = one_in(2) ? 0 : 1 + draw(1000);
    c.stop_us = one_in(4) ? draw_log(10000) : -1;
}

/* --- no hang ---------------------------------------------------------------------------------------------- */

static atomic_llong watched; /* seconds left for the present run; -1: none */

static void *watch(void *arg)
{
    for (;;) {
        sleep(1);
        if (atomic_load(&watched) >= 0 && atomic_fetch_sub(&watched, 1) == 0) {
            fprintf(stderr, "TREK_TEST_SEED=%llu hangs (fault: %s)\n", (unsigned long long)c.seed, fault_names[c.fault]);
            abort();
        }
    }
    return NULL;
}

/* --- what is left -------------------------------------------------------------------------------------------- */

static int64_t count_memory(void)
{
    trek_memory_release_cached(trek_cpu(0));
    return test_memory.blocks;
}

/* --- one run ------------------------------------------------------------------------------------------------------ */

#define WRONG(...) fail_msg("TREK_TEST_SEED=%llu: " __VA_ARGS__)
#define SEED (unsigned long long)c.seed

static void remove_folder(void)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s' '%s.aside'", c.folder, c.folder);
    if (c.folder[0] && system(command) != 0)
        WRONG("the folder stays", SEED);
}

/* What the error has to tell. */
static void check_error(trek_status status, const char *text)
{
    bool named = status == TREK_ERR_MEMORY || strstr(text, "injected") || (c.fault == NO_FOLDER && strstr(text, c.folder)) ||
        (!c.says_why && (strstr(text, "NULL") || strstr(text, fault_names[c.fault])));
    bool natural = c.model == 1 && strstr(text, "more than 1 value"); /* batch norm of a single sample */
    if (natural)
        return;
    if (c.fault == NOTHING || (c.fault != NO_MEMORY && !atomic_load(&c.struck)))
        WRONG("%s: %s, and nothing had failed", SEED, trek_status_name(status), text);
    if (c.fault == BAD_STEP && c.opts.trainer.ranks > 1 && !strstr(text, "rank "))
        WRONG("%s: which rank?", SEED, text);
    if (!named || (c.fault == NO_MEMORY) != (status == TREK_ERR_MEMORY))
        WRONG("%s: %s, for %s", SEED, trek_status_name(status), text, fault_names[c.fault]);
}

static void check_final(const trek_state *final)
{
    for (int k = 0; k < trek_state_count(final); k++) {
        double *values = test_read(trek_state_tensor(final, k));
        for (int64_t i = 0; i < trek_tensor_numel(trek_state_tensor(final, k)); i++)
            if (!isfinite(values[i]))
                WRONG("%s is not finite", SEED, trek_state_name(final, k));
        free(values);
    }
}

/* With TREK_TEST_SEED: what was drawn. */
static void tell_run(void)
{
    const trek_run_opts *o = &c.opts;
    const trek_trainer_opts *t = &o->trainer;
    printf("model %d, %d samples in batches of %d%s, %d epochs, %d ranks, policy %d, transport %d, lead %d, outer %d, site %d, "
           "average %d, accumulate %d, %s parameters, "
           "anchor "
           "%d of %d, global %d, shares %d, balance %d, evaluation %d by %d every %d, patience %d, checkpoints %s every %d, last "
           "%d, "
           "best %d, stopped after %d us, delays %d us, fault in %s at %d\n",
           c.model, (int)c.samples, (int)o->batch_size, o->drop_last ? ", whole ones" : "", (int)o->epochs, t->ranks,
           (int)o->policy, (int)o->transport, (int)o->max_lead, o->outer != NULL, (int)o->site, (int)t->average, t->accumulate,
           t->share_params ? "own" : "shared", (int)t->anchor, (int)t->max_anchor, (int)t->global_batch, t->n_shares, t->balance,
           o->evaluation != NULL, (int)o->evaluation_batch, (int)o->evaluate_every, (int)o->patience, c.folder,
           (int)o->checkpoint_every, o->keep_last, o->keep_best, (int)c.stop_us, (int)c.delay_us, fault_names[c.fault],
           (int)c.fault_at);
}

/* True: it ended well. */
static bool run_once(bool stops)
{
    atomic_store(&watched, SECONDS);
    test_memory.fail_count = c.fault_times;
    if (c.fault == NO_MEMORY)
        test_allocator_restart(c.fault_at);
    trek_run *run = trek_trainer_run(&c.opts);
    if (run && stops) {
        usleep((useconds_t)c.stop_us);
        trek_run_stop(run);
    }
    trek_state *final = run ? trek_run_join(run) : NULL;
    atomic_store(&watched, -1);
    test_allocator_restart(0);
    trek_status status = trek_error_status();
    char text[1024];
    snprintf(text, sizeof text, "%s", trek_error());
    trek_error_clear();
    if (c.wrong[0])
        WRONG("%s", SEED, c.wrong);
    if (final)
        check_final(final);
    else
        check_error(status, text);
    bool harmless = c.fault == NO_MEMORY || (c.fault == BAD_READ && (stops || c.opts.policy != TREK_POLICY_SYNC)) ||
        (may_lose() && (c.fault == BAD_STEP || c.fault == BAD_READ));
        /* found elsewhere; read ahead, and not used */
    if (final && (status != TREK_OK || (atomic_load(&c.struck) && !harmless)))
        WRONG("parameters, and %s although %s has failed", SEED, text, fault_names[c.fault]);
    if (final && !stops && c.opts.patience == 0 && c.epochs != c.opts.epochs)
        WRONG("%d epochs of %d", SEED, (int)c.epochs, (int)c.opts.epochs);
    trek_state_free(&final);
    return status == TREK_OK;
}

static void try_seed(uint64_t seed, trek_dataset *data)
{
    draw_run(seed, data);
    bool stops = c.stop_us >= 0;
    if (getenv("TREK_TEST_SEED"))
        tell_run();
    bool well = run_once(stops);
    if (well && stops && c.folder[0] && c.fault == NOTHING) { /* the rest of it */
        c.opts.resume_from = c.folder;
        c.resumed = true;
        run_once(false);
    }
    remove_folder();
}

static void test_random(void **state)
{
    const char *chosen = getenv("TREK_TEST_SEED");
    uint64_t first = test_seed();
    uint64_t runs = chosen ? 1 : test_long() ? 500 : test_short() ? 30 : 60;
    trek_dataset *data = trek_dataset_new(&data_class);
    pthread_t watcher;
    assert_int_equal(pthread_create(&watcher, NULL, watch, NULL), 0);
    atomic_store(&watched, -1);
    try_seed(first, data); /* what stays for good */
    int threads = left_threads();
    int64_t blocks = count_memory();
    for (uint64_t seed = first; seed < first + runs; seed++) {
        try_seed(seed, data);
        int left = left_threads_settle(threads);
        if (left > threads)
            WRONG("%d threads, before it %d", SEED, left, threads);
        if (count_memory() > blocks)
            WRONG("%d blocks of memory, before it %d", SEED, (int)count_memory(), (int)blocks);
    }
    trek_dataset_free(&data);
}

int main(void)
{
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    if (test_allocator_use() != TREK_OK)
        return 1;
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
