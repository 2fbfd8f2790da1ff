/* SPDX-License-Identifier: Apache-2.0 */
/* Every option of a run and of a trainer, by the name it has in its header: the numbers that are drawn for it, or why it is not
 * drawn (tests/checks/check_sweep.py compares with the headers); and what a case has beside them. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "optim/optimizer_class.h"
#include "optim/optimizers.h"
#include "optim/schedules.h"
#include "tests/distributed/sweep/sweep.h"
#include "tests/support/support.h"

typedef enum kind { INT, INT64, REAL, BOOL, UINT64, CALL, NEVER } kind;

typedef struct option {
    const char *name;
    kind kind;
    size_t offset;
    int one_in;              /* cases in which it is anything but its default */
    int n;
    double values[8];
    void (*draw)(sweep *s, uint64_t number);
    const char *why_not;
} option;

/* --- what is no number of a list ----------------------------------------------------------------- */

static void draw_schedule(sweep *s, uint64_t number)
{
    const trek_schedule all[] = { trek_cosine_lr(0.01, 12, 0.001), trek_step_lr(0.01, 3, 0.5), trek_linear_lr(0.01, 1, 0.1, 9),
                                  trek_exponential_lr(0.01, 0.9), trek_warmup_lr(4, trek_constant_lr(0.01)) };
    s->run.schedule = all[number % (sizeof all / sizeof *all)];
}

static void draw_amp(sweep *s, uint64_t number)
{
    s->run.trainer.amp = (trek_amp_opts){ .scaling = 1, .scaler = { .init_scale = number % 2 ? 1024 : 4, .growth_interval = 3 } };
}

static void draw_shares(sweep *s, uint64_t number)
{
    for (int r = 0; r < SWEEP_MOST_RANKS; r++)
        s->shares[r] = 1 + (double)((number >> 3 * r) % 7);
    s->run.trainer.shares = s->shares;
}

/* Unequal, and enough for everything. */
static void draw_budgets(sweep *s, uint64_t number)
{
    for (int r = 0; r < SWEEP_MOST_RANKS; r++)
        s->budgets[r] = (int64_t)(64 << 20) * (1 + (int64_t)((number >> 3 * r) % 8));
    s->run.trainer.memory_budget = s->budgets;
}

static void draw_plan(sweep *s, uint64_t number)
{
    if (!s->run.trainer.shares)
        draw_shares(s, number);
    s->shares_in_plan = 1 + (int)(number % 4);
}

static void draw_hint(sweep *s, uint64_t number)
{
    s->run.trainer.speed_hint = (trek_speed_hint){ (int)(number % 2), 1 + (double)(number % 5) };
}

static void draw_devices(sweep *s, uint64_t number)
{
    for (int r = 0; r < SWEEP_MOST_RANKS; r++) /* with gaps; the first is the graph's own */
        s->devices[r] = trek_cpu(r == 0 ? 0 : r + (int)(number % 3));
    s->run.trainer.devices = s->devices;
}

static void draw_optimizer(sweep *s, uint64_t number)
{
    double decay = number / 16 % 2 ? 0.01 : 0;
    bool maximize = number / 32 % 8 == 0;
    const trek_optimizer_spec all[] = {
        trek_sgd(&(trek_sgd_opts){ .lr = 0.01, .momentum = 0.9, .nesterov = true, .weight_decay = decay, .maximize = maximize }),
        trek_sgd(&(trek_sgd_opts){ .lr = 0.01, .momentum = 0.8, .dampening = 0.5, .weight_decay = decay }),
        trek_adam(&(trek_adam_opts){ .lr = 0.01, .weight_decay = decay, .eps = 1e-4, .maximize = maximize }),
        trek_adam(&(trek_adam_opts){ .lr = 0.01, .amsgrad = true, .eps = 1e-4 }),
        trek_adamw(&(trek_adam_opts){ .lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4 }),
        trek_rmsprop(&(trek_rmsprop_opts){ .lr = 0.01, .momentum = 0.5, .eps = 1e-4, .weight_decay = decay }),
        trek_adagrad(&(trek_adagrad_opts){ .lr = 0.01, .lr_decay = 0.1, .eps = 1e-4, .initial_accumulator_value = 0.1 }),
        trek_adadelta(&(trek_adadelta_opts){ .lr = 0.5, .eps = 1e-4, .weight_decay = decay }),
        trek_adamax(&(trek_adamax_opts){ .lr = 0.01, .eps = 1e-4, .weight_decay = decay }),
        trek_nadam(&(trek_nadam_opts){ .lr = 0.01, .eps = 1e-4, .weight_decay = decay, .decoupled_weight_decay = number % 2 }),
        trek_radam(&(trek_radam_opts){ .lr = 0.01, .eps = 1e-4, .weight_decay = decay, .decoupled_weight_decay = number % 2 }),
        trek_lamb(&(trek_lamb_opts){ .lr = 0.01, .eps = 1e-3, .weight_decay = decay }),
        trek_lars(&(trek_lars_opts){ .lr = 0.1, .eps = 1e-3, .weight_decay = decay }),
        trek_adafactor(&(trek_adafactor_opts){ .lr = 0.01, .eps1 = 1e-3, .weight_decay = decay }),
    };
    s->optimizer = all[number % (sizeof all / sizeof *all)];
}

/* --- the table ------------------------------------------------------------------------------------- */

#define RUN(field) offsetof(sweep, run.field)
#define TRAINER(field) offsetof(sweep, run.trainer.field)
#define OWN(field) offsetof(sweep, field)
#define COUNT(...) (int)(sizeof((const double[]){ __VA_ARGS__ }) / sizeof(double))
#define PICK(called, of, where, cases, ...) \
    { .name = (called), .kind = (of), .offset = (where), .one_in = (cases), .n = COUNT(__VA_ARGS__), .values = { __VA_ARGS__ } }
#define CALLS(called, cases, function) { .name = (called), .kind = CALL, .one_in = (cases), .draw = (function) }
#define NOT_DRAWN(called, why) { .name = (called), .kind = NEVER, .why_not = (why) }

static const option options[] = {
    /* a case's own: what is trained, on what, by whom */
    PICK("samples", INT64, OWN(samples), 1, 1, 2, 5, 12, 16, 19, 24, 31),
    PICK("ignored", INT, OWN(ignored), 2, SWEEP_SOME, SWEEP_BLOCK, SWEEP_LAST, SWEEP_ALL),
    PICK("loss", INT, OWN(loss), 2, SWEEP_SMOOTHED, SWEEP_MSE, SWEEP_HUBER, SWEEP_WEIGHED, SWEEP_SUM),
    PICK("norm", INT, OWN(norm), 2, SWEEP_LAYER_NORM, SWEEP_SYNC_BATCH_NORM),
    PICK("conv", BOOL, OWN(conv), 3, 1),
    PICK("embedding", BOOL, OWN(embedding), 2, 1),
    PICK("tied", BOOL, OWN(tied), 3, 1),
    PICK("sometimes", BOOL, OWN(sometimes), 2, 1),
    PICK("frozen", BOOL, OWN(frozen), 5, 1),
    PICK("recompute", BOOL, OWN(recompute), 5, 1),
    PICK("way", INT, OWN(way), 2, SWEEP_BATCHES, SWEEP_GATHERED),
    PICK("processes", INT, OWN(processes), 8, 2, 3),
    PICK("windows", INT, OWN(windows), 6, 2, 3),
    PICK("ema", REAL, OWN(ema), 3, 0.9, 0.5),
    PICK("adds", INT, OWN(adds), 4, 2, 3),
    PICK("resumed_ranks", INT, OWN(resumed_ranks), 2, 1, 2, 3),
    CALLS("optimizer", 1, draw_optimizer),
    /* of a run */
    PICK("run.batch_size", INT64, RUN(batch_size), 1, 1, 2, 3, 4, 6, 8, 13),
    PICK("run.epochs", INT64, RUN(epochs), 1, 1, 2, 3),
    PICK("run.input", BOOL, OWN(own_forward), 3, 1), /* left out */
    PICK("run.seed", UINT64, RUN(seed), 2, 1, 77),
    PICK("run.shuffle", BOOL, RUN(shuffle), 1, 1, 1, 0),
    PICK("run.drop_last", BOOL, RUN(drop_last), 4, 1),
    PICK("run.prefetch", INT, RUN(prefetch), 3, TREK_ZERO, 1, 3),
    PICK("run.workers", INT, RUN(workers), 3, 2, 3),
    PICK("run.site", INT, RUN(site), 8, TREK_SITE_PROCESS),
    PICK("run.min_processes", INT, RUN(min_processes), 3, 1, 2),
    CALLS("run.schedule", 3, draw_schedule),
    PICK("run.lr_scale", REAL, RUN(lr_scale), 6, 0.5, 1),
    PICK("run.evaluation", BOOL, OWN(evaluates), 2, 1),
    PICK("run.evaluation_batch", INT64, RUN(evaluation_batch), 2, 1, 5, 40),
    PICK("run.evaluate_every", INT64, RUN(evaluate_every), 3, 2),
    PICK("run.best_is_largest", BOOL, RUN(best_is_largest), 4, 1),
    PICK("run.patience", INT64, RUN(patience), 6, 1),
    PICK("run.checkpoint_every", INT64, RUN(checkpoint_every), 3, 2),
    PICK("run.keep_last", INT, RUN(keep_last), 3, TREK_OFF, 2),
    PICK("run.keep_best", BOOL, RUN(keep_best), 3, 1),
    PICK("run.resume_from", BOOL, OWN(resumes), 4, 1),
    PICK("run.on_epoch", BOOL, OWN(freezes), 6, 1),
    NOT_DRAWN("run.build_model", "required: each case has a model"),
    NOT_DRAWN("run.train_step", "required: each case has a loss"),
    NOT_DRAWN("run.dataset", "required: each case has data"),
    NOT_DRAWN("run.optimizer", "required: \"optimizer\" draws it"),
    NOT_DRAWN("run.arg", "hands the case to its functions"),
    NOT_DRAWN("run.policy", "\"windows\" draws CADENCE of a fixed size; others' windows follow the clock, or are averages"),
    NOT_DRAWN("run.transport", "HOST goes with .site PROCESS, where it is exact; else it averages parameters"),
    NOT_DRAWN("run.max_lead", "of averages, which are no single rank's numbers"),
    NOT_DRAWN("run.outer", "of averages, which are no single rank's numbers"),
    NOT_DRAWN("run.trainer", "its fields follow"),
    NOT_DRAWN("run.evaluate", "another function in the same place; test_run has it"),
    NOT_DRAWN("run.best_metric", "the default, and .best_is_largest: .best is compared"),
    NOT_DRAWN("run.min_delta", "1e-6, so that rounding decides nothing"),
    NOT_DRAWN("run.checkpoint_folder", "each run has one: its last checkpoint is compared"),
    NOT_DRAWN("run.on_metrics", "each run has one: metrics are compared"),
    NOT_DRAWN("run.on_checkpoint", "each run has one: it says where the checkpoint is"),
    /* of a trainer */
    CALLS("trainer.devices", 3, draw_devices),
    PICK("trainer.ranks", INT, TRAINER(ranks), 1, 2, 3, 4, 5, 7),
    PICK("trainer.accumulate", INT, TRAINER(accumulate), 3, 2, 3),
    PICK("trainer.grain", INT64, TRAINER(grain), 4, 1, 2, 3, 40),
    PICK("trainer.max_grad_norm", REAL, TRAINER(max_grad_norm), 3, 0.5, 0.05),
    PICK("trainer.max_grad_value", REAL, TRAINER(max_grad_value), 6, 0.05),
    CALLS("trainer.amp", 4, draw_amp),
    PICK("trainer.share_params", INT, TRAINER(share_params), 2, TREK_OFF),
    PICK("trainer.shard", INT, TRAINER(shard), 3, TREK_SHARD_STATE, TREK_SHARD_GRADIENTS, TREK_SHARD_PARAMETERS),
    PICK("trainer.overlap", INT, TRAINER(overlap), 4, 1, TREK_OFF),
    PICK("trainer.bucket_bytes", INT64, TRAINER(bucket_bytes), 3, 64, 300, 4096),
    CALLS("trainer.speed_hint", 6, draw_hint),
    PICK("trainer.balance", INT, TRAINER(balance), 3, 1, TREK_OFF),
    CALLS("trainer.shares", 4, draw_shares),
    CALLS("trainer.memory_budget", 3, draw_budgets),
    PICK("trainer.activations", INT, TRAINER(activations), 4, TREK_AUTO),
    PICK("trainer.host_budget", INT64, TRAINER(host_budget), 3, TREK_OFF, 1 << 20),
    PICK("trainer.min_share", REAL, TRAINER(min_share), 6, TREK_ZERO, 0.1),
    PICK("trainer.allow_idle", BOOL, TRAINER(allow_idle), 5, 1),
    PICK("trainer.anchor", INT64, TRAINER(anchor), 4, 2),
    PICK("trainer.overhead_target", REAL, TRAINER(overhead_target), 6, 0.3),
    PICK("trainer.max_batch_diff", INT64, TRAINER(max_batch_diff), 6, 1),
    CALLS("trainer.plan", 6, draw_plan),
    PICK("slow", INT, OWN(slow), 8, 1, 2),
    PICK("trainer.deadline_s", REAL, TRAINER(deadline_s), 4, 50, TREK_OFF),
    PICK("trainer.timeline", BOOL, OWN(timed), 6, 1),
    NOT_DRAWN("trainer.build_replica", "required: the case's model"),
    NOT_DRAWN("trainer.arg", "hands the case to its functions"),
    NOT_DRAWN("trainer.optimizer", "\"optimizer\" draws it"),
    NOT_DRAWN("trainer.schedule", "that of the run, in loops of one's own, too"),
    NOT_DRAWN("trainer.n_shares", "as many as the job has ranks"),
    NOT_DRAWN("trainer.n_memory_budget", "as many as the process has ranks"),
    NOT_DRAWN("trainer.max_anchor", "how many batches a window has follows the clock"),
    NOT_DRAWN("trainer.global_batch", "\"windows\" draws it"),
    NOT_DRAWN("trainer.average", "averages of parameters are no single rank's numbers"),
    NOT_DRAWN("trainer.divergence_threshold", "of averaged parameters"),
    NOT_DRAWN("trainer.reduce_dtype", "rounds; test_reduce_dtype compares with its bounds"),
    NOT_DRAWN("trainer.audit", "refused without grains and a second rank; test_audit draws it"),
    NOT_DRAWN("trainer.audit_removes", "needs a rank that computes wrongly; test_audit has some"),
    NOT_DRAWN("trainer.digests", "names a file; test_digests compares what is in it"),
    NOT_DRAWN("trainer.min_processes", "needs the death of processes; test_grain_deaths draws them"),
    NOT_DRAWN("run.max_steps", "test_run_steps ends runs at every step"),
    NOT_DRAWN("run.checkpoint_every_steps", "test_run_steps goes on from every step"),
    NOT_DRAWN("run.evaluate_every_steps", "test_run_steps compares the metrics"),
    NOT_DRAWN("trainer.comm", "the environment's, where \"processes\" starts several"),
};
enum { OPTIONS = sizeof options / sizeof *options };
_Static_assert((int)OPTIONS <= (int)SWEEP_MOST_OPTIONS, "a case notes for each option whether it is left out");

int sweep_options(void) { return OPTIONS; }
const char *sweep_option_name(int k) { return options[k].name; }
bool sweep_option_is_drawn(int k) { return options[k].kind != NEVER; }

/* --- drawing ----------------------------------------------------------------------------------------- */

uint64_t sweep_number(const sweep *s, uint64_t stream, uint64_t k)
{
    uint64_t x = s->seed * 0x9e3779b97f4a7c15u + stream * 0xd1342543de82ef95u + k * 0x2545f4914f6cdd1du + 1;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void set(sweep *s, const option *o, double value)
{
    void *field = (char *)s + o->offset;
    switch (o->kind) {
    case INT:
        *(int *)field = (int)value;
        break;
    case INT64:
        *(int64_t *)field = (int64_t)value;
        break;
    case UINT64:
        *(uint64_t *)field = (uint64_t)value;
        break;
    case REAL:
        *(double *)field = value;
        break;
    default:
        *(bool *)field = value != 0;
        break;
    }
}

/* An option draws from a stream of its own name: without it, or with more beside it, the others are as they were. */
static uint64_t stream_of(const option *o)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = o->name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    return hash;
}

static bool is_drawn(const sweep *s, int k)
{
    const option *o = &options[k];
    return o->kind != NEVER && !s->off[k] && sweep_number(s, stream_of(o), 0) % (uint64_t)o->one_in == 0;
}

static void draw(sweep *s, int k)
{
    const option *o = &options[k];
    uint64_t number = sweep_number(s, stream_of(o), 1);
    if (!is_drawn(s, k))
        return;
    if (o->kind == CALL)
        o->draw(s, number);
    else
        set(s, o, o->values[number % (uint64_t)o->n]);
}

static double value_of(const sweep *s, const option *o)
{
    const void *field = (const char *)s + o->offset;
    switch (o->kind) {
    case INT:
        return *(const int *)field;
    case INT64:
        return (double)*(const int64_t *)field;
    case UINT64:
        return (double)*(const uint64_t *)field;
    case REAL:
        return *(const double *)field;
    default:
        return *(const bool *)field;
    }
}

void sweep_tell(const sweep *s)
{
    for (int k = 0; k < OPTIONS; k++)
        if (is_drawn(s, k) && options[k].kind != CALL)
            printf("%s = %g\n", options[k].name, value_of(s, &options[k]));
        else if (is_drawn(s, k))
            printf("%s is drawn\n", options[k].name);
    printf("by %s, on %d ranks of %d processes\n", s->optimizer.klass->name, s->run.trainer.ranks, s->processes);
}

/* --- what contradicts another ---------------------------------------------------------------------------- */

static int job_ranks(const sweep *s) { return s->processes * s->run.trainer.ranks; }

/* Labels that are ignored are of the first two losses; of the sum of two it is not known what it would be the mean of. */
static void settle_model(sweep *s)
{
    if (s->loss == SWEEP_SUM)
        s->ignored = SWEEP_NONE;
    if (s->norm == SWEEP_SYNC_BATCH_NORM) {
        s->run.batch_size = s->run.batch_size < 3 ? 3 : s->run.batch_size; /* of one row there is no variance, and two become 1
                                                                               and -1: what is gone back is rounding */
        if (s->samples < 3 || (s->samples % s->run.batch_size != 0 && s->samples % s->run.batch_size < 3))
            s->samples += 3 - s->samples % s->run.batch_size;
        s->windows = 1;
        if (s->optimizer.klass == trek_lamb(NULL).klass) /* makes a gradient that cancels, but for rounding, as
                                                                             large as its parameter */
            s->optimizer = trek_adam(&(trek_adam_opts){ .lr = 0.01, .eps = 1e-4 });
    }
}

/* Windows are counted in whole batches by all ranks; those of one rank are its batches. */
static void settle_windows(sweep *s)
{
    trek_trainer_opts *t = &s->run.trainer;
    if (s->way == SWEEP_GATHERED || job_ranks(s) == 1 || s->run.site == TREK_SITE_PROCESS || s->resumes || s->shares_in_plan)
        s->windows = 1;
    if (s->windows == 1) {
        t->max_anchor = TREK_OFF;
        t->anchor = t->max_batch_diff = 0;
        t->overhead_target = 0;
        return;
    }
    s->run.drop_last = false;
    s->run.policy = TREK_POLICY_CADENCE;
    t->global_batch = s->windows * s->run.batch_size;
    t->anchor = 0;
}

/* Grains are refused with these; on one rank there are grains, too. */
static void settle_grain(sweep *s)
{
    if (s->way == SWEEP_GATHERED || s->adds || s->windows > 1 || s->run.site == TREK_SITE_PROCESS ||
        s->norm == SWEEP_SYNC_BATCH_NORM || s->run.trainer.overlap == 1)
        s->run.trainer.grain = 0;
}

/* Gradients and parameters are divided among ranks of their own parameters that meet in each pass. */
static void settle_divided_gradients(sweep *s)
{
    trek_trainer_opts *t = &s->run.trainer;
    bool several = t->ranks > 1 || s->resumed_ranks > 1;
    if (t->shard >= TREK_SHARD_GRADIENTS &&
        ((t->grain > 0 && s->processes > 1) || s->windows > 1 || s->norm == SWEEP_SYNC_BATCH_NORM ||
         (several && t->share_params != TREK_OFF)))
        t->shard = TREK_SHARD_STATE;
}

/* What is recomputed is chosen by a pass that must be possible. Budgets are enough: test_recompute_plan has others. */
static void settle_activations(sweep *s)
{
    if (s->way == SWEEP_GATHERED || s->norm == SWEEP_SYNC_BATCH_NORM || s->run.site == TREK_SITE_PROCESS)
        s->run.trainer.activations = 0;
    if (s->run.trainer.activations == 0)
        s->run.trainer.host_budget = 0;
}

static void settle_shares(sweep *s)
{
    trek_trainer_opts *t = &s->run.trainer;
    int ranks = job_ranks(s);
    if (s->resumes && s->resumed_ranks != t->ranks)
        t->shares = NULL, s->shares_in_plan = 0;
    if (s->shares_in_plan || ranks == 1)
        t->shares = NULL;
    if (ranks == 1)
        s->shares_in_plan = 0;
    if (t->shares || s->shares_in_plan) {
        t->balance = t->balance == 1 ? 0 : t->balance;
        t->speed_hint = (trek_speed_hint){ 0 };
        t->min_share = t->overhead_target = 0;
        t->max_batch_diff = 0;
    }
    t->n_shares = t->shares ? ranks : 0;
    if (t->min_share > 0.5 / ranks)
        t->min_share = 0.5 / ranks;
    for (int r = 0; r < ranks && t->allow_idle && ranks > 1 && s->shares[r] > 1; r++)
        s->shares[r] = r % 2 ? 0 : s->shares[r];
    if (t->shares && !t->allow_idle)
        return;
    bool any = false;
    for (int r = 0; r < ranks; r++)
        any |= s->shares[r] > 0;
    s->shares[0] = any ? s->shares[0] : 1;
}

static void settle_ranks(sweep *s)
{
    trek_trainer_opts *t = &s->run.trainer;
    int most = SWEEP_MOST_RANKS / s->processes;
    t->ranks = t->ranks > most ? most : t->ranks;
    s->resumed_ranks = s->resumed_ranks > most ? most : s->resumed_ranks == 0 ? t->ranks : s->resumed_ranks;
    if (s->processes == 1 || t->shard != TREK_SHARD_NONE) /* UNSUPPORTED together */
        s->run.min_processes = 0;
    if (s->run.min_processes > s->processes)
        s->run.min_processes = s->processes;
    if (s->run.site == TREK_SITE_PROCESS && (s->processes > 1 || s->way != SWEEP_RUN || s->norm == SWEEP_SYNC_BATCH_NORM))
        s->run.site = TREK_SITE_RANK;
    if (s->run.site == TREK_SITE_PROCESS) { /* a single one averages nothing: exact */
        s->run.transport = TREK_TRANSPORT_HOST;
        t->accumulate = 0;
        t->memory_budget = NULL;
        t->amp = (trek_amp_opts){ 0 };
        t->shard = TREK_SHARD_NONE;
    }
    t->n_memory_budget = t->memory_budget ? t->ranks : 0;
}

static void settle_run(sweep *s)
{
    trek_run_opts *o = &s->run;
    if (o->drop_last && o->batch_size > s->samples)
        o->drop_last = false;
    if (!s->evaluates)
        o->evaluation_batch = o->evaluate_every = 0;
    o->min_delta = 1e-6;
    if (o->prefetch == TREK_ZERO)
        o->workers = 0;
    if (s->resumes)
        o->evaluate_every = 0; /* the last epoch of a run is evaluated in any case */
    s->resumes &= o->epochs > 1 && o->patience == 0; /* whose count of epochs is the run's own */
    s->resumed_at = s->resumes ? 1 + (int64_t)(sweep_number(s, 90, 0) % (uint64_t)(o->epochs - 1)) : 0;
    if (s->way != SWEEP_RUN)
        s->freezes = false;
    else
        s->ema = 0;
    if (s->resumes && s->resumed_ranks != o->trainer.ranks)
        o->lr_scale = 0;
    if (s->optimizer.klass == trek_rmsprop(NULL).klass) /* at several times the rate it amplifies rounding tenfold in an epoch */
        o->lr_scale = 0;
    s->ema = s->resumes ? 0 : s->ema;
}

void sweep_draw(sweep *s)
{
    sweep drawn = { .seed = s->seed, .samples = 7, .processes = 1, .windows = 1,
                    .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.01, .momentum = 0.9, .weight_decay = 0.01 }) };
    memcpy(drawn.off, s->off, sizeof drawn.off);
    drawn.run = (trek_run_opts){ .batch_size = 4, .epochs = 1, };
    drawn.run.trainer = (trek_trainer_opts){ .ranks = 2, .deadline_s = 50 };
    for (int k = 0; k < OPTIONS; k++)
        draw(&drawn, k);
    *s = drawn;
    if (s->run.trainer.shares)
        s->run.trainer.shares = s->shares;
    if (s->run.trainer.memory_budget)
        s->run.trainer.memory_budget = s->budgets;
    if (s->run.trainer.devices)
        s->run.trainer.devices = s->devices;
    s->run.input = s->own_forward && s->way != SWEEP_GATHERED ? NULL : "x";
    settle_model(s);
    settle_ranks(s);
    settle_run(s);
    settle_shares(s);
    settle_windows(s);
    settle_grain(s);
    settle_divided_gradients(s);
    settle_activations(s);
    s->tells = s->processes == 1;
}

sweep sweep_on_one(const sweep *s)
{
    sweep one = *s;
    trek_run_opts *o = &one.run;
    trek_trainer_opts *t = &o->trainer;
    double factor = s->way == SWEEP_RUN && s->run.site == TREK_SITE_RANK ? 1 + (job_ranks(s) - 1) * o->lr_scale : 1;
    one.one = true;
    one.processes = one.windows = 1;
    one.resumes = one.recompute = false;
    one.shares_in_plan = 0;
    o->batch_size *= s->windows;
    o->policy = TREK_POLICY_SYNC;
    o->transport = TREK_TRANSPORT_DEVICE;
    o->site = TREK_SITE_RANK;
    o->lr_scale = 0;
    o->min_processes = o->workers = 0;
    o->prefetch = TREK_ZERO;
    one.optimizer.options[0] *= factor;
    if (o->schedule.kind != TREK_SCHEDULE_KIND_NONE)
        o->schedule = trek_scaled_lr(o->schedule, factor);
    *t = (trek_trainer_opts){ .ranks = 1, .accumulate = t->accumulate, .max_grad_norm = t->max_grad_norm,
                              .max_grad_value = t->max_grad_value, .amp = t->amp };
    return one;
}
