/* SPDX-License-Identifier: Apache-2.0 */
/* What is divided over processes, which trek-run starts, with one rank each or several: the bits of the undivided, whatever is
 * drawn; memory as planned; one process reads alone while the others compute; what programs write between two passes; other
 * optimizers and set-ups; sets of checkpoints on other numbers of processes; processes that die. Processes of other machines have
 * another /dev/shm, and are reached over connections. Reading what a process does not have ends it. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/losses.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/checkpoint.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/comm/shared/lent.h"
#include "distributed/control/control.h"
#include "distributed/grains/grains.h"
#include "distributed/stepper.h"
#include "distributed/team/divided.h"
#include "distributed/team/memory.h"
#include "distributed/team/step.h"
#include "distributed/trainer.h"
#include "graph/amp.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/state_modules.h"
#include "optim/optimizers.h"
#include "tensor/memory_account.h"
#include "tensor/pages.h"
#include "tensor/rank_context.h"
#include "tests/distributed/team/divided_optimizers.h"
#include "tests/support/labelled.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { VOCABULARY = 40, LENGTH = 4, WIDTH = 24, LAYERS = 3, DEPTH = 8, SAMPLES = 48, BATCH = 12, MANY = 480, WIDE = 160,
       LARGE = 280, SECONDS = 120 };

static int process;
static bool several, far; /* the processes have several ranks each; every second one is on another machine */

/* --- a model: a table that is also the last weight, a frozen parameter, one that is never used ----------------------- */

typedef struct config {
    trek_shard shard;
    trek_dtype dtype;
    int64_t bucket_bytes, width;
    int grain, accumulate, optimizer, second; /* second: takes its place after an epoch; -1: none */
    int ranks[4];            /* of each process; 0: one */
    bool deep;               /* layers one behind the other, of which some may be recomputed */
    const int64_t *exact;    /* [ranks] budgets, with which some are (.activations); NULL: none */
    bool norm, value, scaled, groups, budgets, unequal, recut, ahead;
} config;

typedef struct net {
    trek_module base;
    trek_var *table, *frozen, *unused, *weights[LAYERS], *biases[LAYERS], *scale;
} net;

static trek_var *net_forward(trek_module *module, trek_var *x)
{
    net *m = (net *)module;
    trek_var *h = trek_select(trek_embedding(trek_cast(x, TREK_I64), m->table, -1), 1, -1);
    h = trek_add(h, m->frozen);
    for (int k = 0; k < LAYERS; k++)
        h = trek_add(h, trek_gelu(trek_linear(h, m->weights[k], m->biases[k])));
    return trek_mul(trek_linear(h, m->table, NULL), m->scale);
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward = net_forward };

static void add(trek_module *m, const char *name, size_t offset, uint32_t stream, trek_shape shape, trek_dtype dtype)
{
    int64_t n = trek_shape_numel(shape);
    float *values = malloc((size_t)n * sizeof *values);
    for (int64_t k = 0; k < n; k++)
        values[k] = 0.3f * test_number(stream, (uint32_t)k);
    trek_tensor *whole = trek_tensor_from_data(values, shape, TREK_F32, trek_cpu(0)), *own = trek_tensor_cast(whole, dtype);
    free(values);
    trek_tensor_release(whole);
    trek_module_param(m, name, offset, own);
}

static trek_graph *build_deep(trek_device device, int64_t width)
{
    trek_module *modules[2 * DEPTH + 1];
    for (int k = 0; k < DEPTH; k++) {
        modules[2 * k] = trek_nn_linear(k ? width : LENGTH, width, device);
        modules[2 * k + 1] = trek_nn_gelu();
    }
    modules[2 * DEPTH] = trek_nn_linear(width, VOCABULARY, device);
    return trek_flow_build(trek_flow_from(trek_nn_sequential(modules, 2 * DEPTH + 1)));
}

static trek_graph *build(trek_device device, void *arg)
{
    const config *c = arg;
    int64_t width = c->width ? c->width : WIDTH;
    if (c->deep)
        return build_deep(device, width);
    trek_module *m = trek_module_new(&net_class);
    add(m, "table", offsetof(net, table), 1, trek_dims(VOCABULARY, width), c->dtype);
    add(m, "frozen", offsetof(net, frozen), 2, trek_dims(width), c->dtype);
    add(m, "unused", offsetof(net, unused), 3, trek_dims(7, 30), c->dtype);
    for (int k = 0; k < LAYERS; k++) {
        char name[16];
        snprintf(name, sizeof name, "weight%d", k);
        add(m, name, offsetof(net, weights) + (size_t)k * sizeof(trek_var *), 4 + (uint32_t)k, trek_dims(width, width), c->dtype);
        snprintf(name, sizeof name, "bias%d", k);
        add(m, name, offsetof(net, biases) + (size_t)k * sizeof(trek_var *), 14 + (uint32_t)k, trek_dims(width), c->dtype);
    }
    add(m, "scale", offsetof(net, scale), 20, trek_dims(VOCABULARY), c->dtype == TREK_BF16 ? TREK_F32 : c->dtype);
    trek_var_set_requires_grad(((net *)m)->frozen, false);
    return trek_flow_build(trek_flow_from(trek_module_check(m)));
}

static const trek_step *dies; /* this process dies in the loss of its step; NULL: it does not */
static atomic_bool ran[8]; /* which ranks of this process have trained on anything */

/* As others see it, each rank of the process will take a grain at once, and run it in no time. */
static void look_ready(const trek_step *s)
{
    const trek_grain_pace *pace = s->grains ? &s->grains->pace_of_all : NULL;
    for (int r = 0; pace && pace->words && r < s->job.local_ranks; r++)
        for (int k = 0; k < 64; k++) {
            trek_grain_pace_start(pace, s->job.first_rank + r, 1, 0);
            trek_grain_pace_stop(pace, s->job.first_rank + r, 1, 0);
        }
}

static trek_var *loss(trek_graph *graph, trek_var *y, const trek_batch *batch, void *arg)
{
    if (dies) {
        look_ready(dies);
        _exit(0);
    }
    atomic_store(&ran[trek_rank_here.rank], true);
    return labelled_loss(graph, y, batch, NULL);
}

static trek_loader *make_loader(int samples, int64_t batch)
{
    return trek_loader_new(labelled_tokens(samples, LENGTH, VOCABULARY),
                           &(trek_loader_opts){ .batch_size = batch, .shuffle = true, .seed = 3 });
}

/* --- training, in a process of the job -------------------------------------------------------------------------- */

typedef struct training {
    config c;
    trek_comm *comm;
    trek_graph *graph;
    trek_loader *loader;
} training;

static net *net_of(const training *t) { return (net *)trek_graph_at(t->graph, "0"); }

static int ranks_of(const config *c, int p) { return c->ranks[p] > 0 ? c->ranks[p] : 1; }

static trek_status set_up(training *t)
{
    static const double uneven[] = { 3, 1, 2, 1, 4, 1, 1, 2 };
    static const int64_t ample[] = { 1 << 30, 1 << 27, 1 << 29, 1 << 28, 1 << 27, 1 << 28, 1 << 29, 1 << 30 };
    const config *c = &t->c;
    int own = ranks_of(c, process), first = 0, all = 0;
    for (int p = 0; p < trek_comm_world_size(t->comm); p++) {
        first += p < process ? ranks_of(c, p) : 0;
        all += ranks_of(c, p);
    }
    bool adafactor = c->optimizer == 4 || c->second == 4; /* which squares larger gradients to infinity */
    return trek_trainer_setup(t->graph, &(trek_trainer_opts){
        .comm = t->comm, .ranks = own, .build_replica = build, .arg = &t->c, .share_params = TREK_OFF, .shard = c->shard,
            .bucket_bytes = c->bucket_bytes, .grain = c->grain, .accumulate = c->accumulate,
        .max_anchor = TREK_OFF, .balance = c->unequal ? 0 : TREK_OFF, .shares = c->unequal ? uneven : NULL,
        .n_shares = c->unequal ? all : 0, .memory_budget = c->exact ? c->exact : c->budgets ? ample + first : NULL,
        .n_memory_budget = c->exact || c->budgets ? own : 0, .activations = c->exact ? TREK_AUTO : 0, .overlap = c->ahead ? 1 : 0,
        .max_grad_norm = c->norm ? 0.2 : 0,
        .max_grad_value = c->value ? 0.01 : 0,
        .amp = { .scaling = c->scaled, .scaler = { .init_scale = !c->scaled ? 0 : adafactor ? 0x1p40 : 0x1p127,
                                                   .backoff_factor = c->scaled ? 0x1p-60 : 0 } },
        .optimizer = divided_optimizer(c->optimizer) });
}

static void begin(const config *c, trek_comm *comm, training *t)
{
    *t = (training){ .c = *c, .comm = comm };
    for (int p = 0; p < 4 && c->ranks[0] == 0; p++)
        t->c.ranks[p] = several ? 1 + (p + 1) % 2 : 1;
    trek_seed(7);
    t->graph = build(trek_cpu(0), &t->c);
    t->loader = t->c.deep ? make_loader(MANY, MANY) : make_loader(SAMPLES, BATCH);
    assert_int_equal(trek_graph_set_loader(t->graph, t->loader, "x"), TREK_OK);
    assert_int_equal(trek_graph_set_loss(t->graph, loss, NULL), TREK_OK);
    if (set_up(t) != TREK_OK)
        fail_msg("%s", trek_error());
    if (c->groups && trek_optimizer_vectors(trek_graph_optimizer(t->graph), divided_optimizer(c->optimizer)) < 0)
        fail_msg("%s", trek_error());
}

static void end(training *t)
{
    trek_graph_free(&t->graph);
    trek_loader_free(&t->loader);
}

static trek_status epoch(const training *t, int64_t number) { return labelled_epoch(t->graph, number, t->c.accumulate); }

static void train(const config *c, trek_comm *comm, elements *to)
{
    training t;
    begin(c, comm, &t);
    bool good = epoch(&t, 0) == TREK_OK;
    if (good && c->second >= 0)
        good = trek_graph_set_optimizer(t.graph, divided_optimizer(c->second)) == TREK_OK;
    if (good && c->recut) { /* from whole parameters to parts, with what there is of an optimizer */
        t.c.bucket_bytes *= 2;
        good = set_up(&t) == TREK_OK;
    }
    if (!good || epoch(&t, 1) != TREK_OK)
        fail_msg("%s", trek_error());
    elements_of_params(t.graph, to);
    end(&t);
}

/* --- what the processes do ------------------------------------------------------------------------------------------ */

static void draw(trek_comm *comm, int first, int count)
{
    static elements got, expected;
    static const trek_dtype dtypes[] = { TREK_F32, TREK_BF16, TREK_F64 };
    for (int k = first; k < first + count; k++) {
        alarm(SECONDS); /* each of them */
        uint32_t h = test_hash((uint32_t)(k + 77));
        config c = { .shard = TREK_SHARD_GRADIENTS, .dtype = dtypes[k % 3], .bucket_bytes = 512 << (h & 7),
                     .accumulate = (int)(h >> 3 & 1) * 2, .optimizer = k % DIVIDED_OPTIMIZERS,
                     .second = h >> 4 & 1 ? (int)(h >> 5 & 15) % DIVIDED_OPTIMIZERS : -1, .norm = h >> 9 & 1,
                     .value = h >> 10 & 1, .scaled = (h >> 11 & 3) == 0, .groups = h >> 13 & 1, .budgets = h >> 14 & 1,
                     .unequal = h >> 15 & 1, .recut = (h >> 16 & 3) == 0, .width = h >> 18 & 1 ? 4 * WIDTH : 0 };
        for (int p = 0; p < 4; p++)
            c.ranks[p] = h >> 20 & 1 ? 1 : h >> 21 & 1 ? 2 : 1 + (int)((h >> 22) + (uint32_t)p) % 3;
        const char *engine = comm->engine->name; /* Gloo has a ring, and MPI an order of its own */
        bool in_order = strcmp(engine, "shared") == 0 || (strcmp(engine, "gloo") == 0 && trek_comm_world_size(comm) == 2);
        bool alike = in_order && !c.norm && c.accumulate == 0; /* squares, and what passes add up, have another order, too */
        c.shard = alike ? TREK_SHARD_NONE : TREK_SHARD_GRADIENTS;
        train(&c, comm, &expected);
        c.shard = !alike || k % 4 ? TREK_SHARD_PARAMETERS : k % 8 ? TREK_SHARD_GRADIENTS : TREK_SHARD_STATE;
        c.ahead = h >> 19 & 1;
        train(&c, comm, &got);
        char text[200];
        snprintf(text, sizeof text, "draw %d: process %d, level %d, %d, %d and %d ranks, %s, optimizer %d, %d, buckets of "
                                    "%d%s%s%s%s%s%s%s", k, process, (int)c.shard, c.ranks[0], c.ranks[1], c.ranks[2],
                 trek_dtype_name(c.dtype), c.optimizer, c.second, (int)c.bucket_bytes, c.norm ? ", norm" : "",
                 c.scaled ? ", scaled" : "", c.groups ? ", groups" : "", c.budgets ? ", budgets" : "",
                 c.unequal ? ", unequal" : "", c.recut ? ", set up again" : "", c.ahead ? ", ahead" : "");
        elements_expect(&got, &expected, "%s", text);
    }
}

/* A process has its parts, two buckets of parameters, the gradients that are not sent yet, and its activations. In grains its
 * part of the sums belongs to it, too. */
static void measure(trek_comm *comm)
{
    if (!trek_memory_account_counts())
        return;
    for (int k = 0; k < 7; k++) {
        config c = { .shard = k == 6 ? TREK_SHARD_GRADIENTS : TREK_SHARD_PARAMETERS, .bucket_bytes = 1 << 14, .width = WIDE,
                     .ahead = k < 4 && k & 1, .second = -1, .accumulate = k > 1 && k < 6 ? 2 : 0, .grain = k > 3 ? k - 2 : 0 };
        training t;
        c.budgets = true;
        begin(&c, comm, &t);
        memset(ran, 0, sizeof ran);
        if (epoch(&t, 0) != TREK_OK || epoch(&t, 1) != TREK_OK)
            fail_msg("%s", trek_error());
        const trek_team *team = trek_graph_ranks(t.graph)->team;
        const trek_memory_row *row = &team->memory->rows[team->memory->first_own];
        int64_t all = 0;
        for (int r = 0; r < team->local_ranks; r++) {
            int64_t planned = trek_memory_total(&row[r]), peak = trek_memory_account_peak(team->memory->accounts[r]);
            if (peak > planned + planned / 50 || (peak < planned - planned / 50 && atomic_load(&ran[r])))
                fail_msg("process %d, rank %d: %" PRId64 " bytes were planned, and %" PRId64 " used", process, r, planned, peak);
        }
        for (int r = 0; r < team->memory->n_rows; r++)
            all += team->memory->rows[r].params;
        assert_int_equal(team->memory->n_rows, team->sharers);
        assert_int_equal(all, (k == 6 ? team->sharers : 1) * 4 * team->replicas[0].arena->parts[0].count);
        end(&t);
    }
}

/* A second optimizer has much fewer buckets than the first one, whose order is no guess any more. */
static void fewer_buckets(trek_comm *comm)
{
    static elements got, expected;
    config c = { .shard = TREK_SHARD_GRADIENTS, .bucket_bytes = 512, .width = WIDE, .optimizer = 0, .second = 2 };
    train(&c, comm, &expected);
    c.shard = TREK_SHARD_PARAMETERS;
    c.ahead = true;
    train(&c, comm, &got);
    elements_expect(&got, &expected, "with fewer buckets");
}

/* What a rank lacks for its activations it computes twice, while its parameters are divided. */
static void recompute(trek_comm *comm)
{
    static elements got, expected;
    int64_t budgets[4];
    if (!trek_memory_account_counts())
        return;
    config c = { .shard = TREK_SHARD_NONE, .bucket_bytes = 1 << 14, .width = 64, .second = -1, .deep = true };
    train(&c, comm, &expected);
    c.shard = TREK_SHARD_PARAMETERS;
    c.budgets = true;
    training t;
    begin(&c, comm, &t);
    const trek_team_memory *memory = trek_graph_ranks(t.graph)->team->memory;
    for (int r = 0; r < memory->n_own; r++) {
        const trek_memory_row *row = &memory->rows[memory->first_own + r];
        budgets[r] = trek_memory_total(row) - row->activations / 5 + (1 << 14);
    }
    end(&t);
    c.exact = budgets;
    begin(&c, comm, &t);
    if (epoch(&t, 0) != TREK_OK || epoch(&t, 1) != TREK_OK)
        fail_msg("%s", trek_error());
    memory = trek_graph_ranks(t.graph)->team->memory;
    for (int r = 0; r < memory->n_own; r++) {
        assert_true(memory->rows[memory->first_own + r].recomputed > 0);
        assert_true(trek_memory_account_peak(memory->accounts[r]) <= budgets[r]);
    }
    elements_of_params(t.graph, &got);
    end(&t);
    if (strcmp(comm->engine->name, "shared") == 0)
        elements_expect(&got, &expected, "with parts that are computed twice");
}

static double answer(const training *t)
{
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_zeros(trek_dims(2, LENGTH), TREK_F32, trek_cpu(0)));
    trek_var *y = trek_graph_infer(t->graph, &x, 1, NULL, NULL, 0);
    double sum = y ? trek_var_item(trek_sum(trek_cast(y, TREK_F64), trek_dims_all(), false)) : NAN;
    trek_scope_end(scope);
    return sum;
}

/* The last process reads, as often as it likes, while the others wait for it in a step, or have left. On other machines they
 * cannot leave before. */
static void read_alone(trek_comm *comm)
{
    static elements waiting[2], left[2];
    int last = trek_comm_world_size(comm) - 1;
    double sums[2];
    for (int divided = 0; divided < 2; divided++) {
        config c = { .shard = divided ? TREK_SHARD_PARAMETERS : TREK_SHARD_GRADIENTS, .bucket_bytes = 1 << 20, .second = -1,
                     .width = LARGE };
        training t;
        begin(&c, comm, &t);
        assert_int_equal(epoch(&t, 0), TREK_OK);
        for (int k = 0; k < 5 && process == last; k++) {
            sums[divided] = answer(&t);
            elements_of_params(t.graph, &waiting[divided]);
        }
        assert_int_equal(epoch(&t, 1), TREK_OK);
        if (process == last) {
            while (divided && !far && !trek_control_some_left(comm->control))
                usleep(1000);
            elements_of_params(t.graph, &left[divided]);
        }
        end(&t);
    }
    if (process < last)
        return;
    assert_true(sums[0] == sums[1]);
    elements_expect(&waiting[1], &waiting[0], "while others wait");
    elements_expect(&left[1], &left[0], "when others have left");
}

/* What is written is half of what was there, so that nobody may get it twice. */
static trek_status write_half(const training *t)
{
    net *m = net_of(t);
    trek_var *all[] = { m->table, m->weights[1], m->scale };
    trek_scope scope = trek_scope_begin();
    trek_status status = TREK_OK;
    for (int k = 0; k < 3 && status == TREK_OK; k++) {
        trek_tensor *half = trek_var_data(trek_mul_scalar(all[k], 0.5));
        status = half ? trek_tensor_copy_from(trek_var_data(all[k]), half) : trek_error_status();
    }
    trek_scope_end(scope);
    return status;
}

static void write_together(trek_comm *comm)
{
    static elements got, written[2], trained[2], before;
    for (int divided = 0; divided < 2; divided++) {
        config c = { .shard = divided ? TREK_SHARD_PARAMETERS : TREK_SHARD_GRADIENTS, .bucket_bytes = 2048, .second = -1,
                     .width = WIDE };
        training t;
        begin(&c, comm, &t);
        assert_int_equal(epoch(&t, 0), TREK_OK);
        if (divided) { /* one process alone must not */
            elements_of_params(t.graph, &before);
            if (process == 1)
                assert_int_equal(write_half(&t), TREK_OK);
            FAILS(trek_graph_parameters_changed(t.graph), TREK_ERR_STATE, "were written in process");
            if (process != 1) {
                elements_of_params(t.graph, &got);
                elements_expect(&got, &before, "what another process has written");
                assert_int_equal(write_half(&t), TREK_OK);
            }
            FAILS(epoch(&t, 1), TREK_ERR_STATE, "call trek_graph_parameters_changed");
            trek_graph_zero_grad(t.graph);
        } else {
            assert_int_equal(write_half(&t), TREK_OK);
        }
        SUCCEEDS(trek_graph_parameters_changed(t.graph));
        elements_of_params(t.graph, &written[divided]);
        if (epoch(&t, 1) != TREK_OK)
            fail_msg("%s", trek_error());
        elements_of_params(t.graph, &trained[divided]);
        end(&t);
    }
    elements_expect(&written[1], &written[0], "what was written");
    elements_expect(&trained[1], &trained[0], "what was trained after it");
}

static void checkpoint(trek_comm *comm, const char *path, bool loads)
{
    static elements got, saved;
    char values[512];
    config c = { .shard = TREK_SHARD_PARAMETERS, .bucket_bytes = loads ? 4096 : 1024, .second = -1, .width = WIDE,
                 .dtype = TREK_BF16,
                 .budgets = loads };
    training t;
    begin(&c, comm, &t);
    snprintf(values, sizeof values, "%s.values", path);
    if (!loads)
        assert_int_equal(epoch(&t, 0), TREK_OK);
    SUCCEEDS((loads ? trek_checkpoint_load : trek_checkpoint_save)(t.graph, t.loader, path));
    elements_of_params(t.graph, &got);
    if (!loads && process == 0) {
        FILE *file = fopen(values, "wb");
        assert_true(file && fwrite(&got, sizeof got, 1, file) == 1 && fclose(file) == 0);
    }
    if (loads) {
        FILE *file = fopen(values, "rb");
        assert_true(file && fread(&saved, sizeof saved, 1, file) == 1);
        fclose(file);
        elements_expect(&got, &saved, "loaded");
    }
    assert_int_equal(epoch(&t, 1), TREK_OK);
    end(&t);
}

/* Process 1 dies in its loss, or in an update. The others learn of it, and read its part, or are told that it is not whole. In
 * grains they may be adding to its sums then, and do not wait for it to take what is left. */
static void die(trek_comm *comm, bool in_update, int grain)
{
    static elements got, before;
    config c = { .grain = grain, .shard = TREK_SHARD_PARAMETERS, .bucket_bytes = 1024, .second = -1, .width = WIDE };
    training t;
    begin(&c, comm, &t);
    assert_int_equal(epoch(&t, 0), TREK_OK);
    elements_of_params(t.graph, &before);
    trek_status status = trek_comm_barrier(comm); /* of one that is late it ends by the death itself */
    if (process == 1 && in_update) {
        trek_lent_begin_update(trek_graph_ranks(t.graph)->team->lent, 0);
        _exit(0);
    }
    dies = process == 1 ? trek_graph_ranks(t.graph) : NULL;
    int64_t number = 1;
    if (status == TREK_OK)
        status = epoch(&t, number);
    while (status == TREK_OK && grain > 0 && number < 100) /* until process 1 gets a grain */
        status = epoch(&t, ++number);
    if (status != TREK_ERR_PEER || !strstr(trek_error(), "process 1"))
        fail_msg("%s: %s", trek_status_name(status), trek_error());
    trek_error_clear();
    if (grain > 0) { /* some steps may have been made since */
        end(&t);
        return;
    }
    if (far && process != 1) { /* nobody has its part any more */
        trek_tensor *copy = trek_tensor_clone(trek_var_data(net_of(&t)->weights[1]));
        assert_null(copy);
        expect_error(TREK_ERR_PEER, "process 1");
    } else if (!in_update) {
        elements_of_params(t.graph, &got);
        elements_expect(&got, &before, "what a process had that has died");
    } else {
        trek_tensor *copy = trek_tensor_clone(trek_var_data(net_of(&t)->weights[1])); /* in the middle, as process 1's part */
        assert_null(copy);
        expect_error(TREK_ERR_PEER, "process 1, which keeps a part of them, is or has ended in the middle of a step");
    }
    trek_error_clear();
    end(&t);
}

/* Process 1 ends while others read its part over connections. They get it, or an error. */
static void lose(trek_comm *comm)
{
    config c = { .shard = TREK_SHARD_PARAMETERS, .bucket_bytes = 1 << 20, .second = -1, .width = LARGE };
    training t;
    begin(&c, comm, &t);
    assert_int_equal(epoch(&t, 0), TREK_OK);
    trek_tensor *weight = trek_var_data(net_of(&t)->weights[1]), *before = trek_tensor_clone(weight), *copy;
    trek_status met = trek_comm_barrier(comm); /* of one that is late it ends by the death itself */
    if (process == 1) {
        usleep(200000);
        _exit(0);
    }
    while (met == TREK_OK && (copy = trek_tensor_clone(weight))) {
        assert_memory_equal(trek_tensor_data(copy), trek_tensor_data(before), LARGE * LARGE * sizeof(float));
        trek_tensor_release(copy);
        trek_divided_forget(trek_graph_ranks(t.graph)->team);
    }
    expect_error(TREK_ERR_PEER, "process 1");
    trek_error_clear();
    trek_tensor_release(before);
    end(&t);
}

static void expect_refused(const training *t, const char *why)
{
    trek_divided_forget(trek_graph_ranks(t->graph)->team);
    trek_tensor *copy = trek_tensor_clone(trek_var_data(net_of(t)->weights[1]));
    assert_null(copy);
    expect_error(TREK_ERR_PEER, why);
    trek_error_clear();
}

/* Nobody reads what another process has in the middle of an update, or has updated more often than the reader. */
static void versions(trek_comm *comm)
{
    static elements got, before;
    config c = { .shard = TREK_SHARD_PARAMETERS, .bucket_bytes = 1024, .second = -1, .width = WIDE };
    training t;
    begin(&c, comm, &t);
    assert_int_equal(epoch(&t, 0), TREK_OK);
    elements_of_params(t.graph, &before);
    struct trek_lent *lent = trek_graph_ranks(t.graph)->team->lent;
    for (int moment = 0; moment < 3; moment++) {
        assert_int_equal(trek_comm_barrier(comm), TREK_OK);
        for (int r = 0; r < ranks_of(&t.c, process); r++) {
            if (moment < 2 ? process == 1 : process != 1)
                (moment == 1 ? trek_lent_end_update : trek_lent_begin_update)(lent, r);
            if (moment == 2 && process != 1)
                trek_lent_end_update(lent, r);
        }
        assert_int_equal(trek_comm_barrier(comm), TREK_OK);
        if (moment < 2 && process != 1)
            expect_refused(&t, moment ? "process 1, which keeps a part of them, has made 5 steps, and this process 4"
                                      : "process 1, which keeps a part of them, is or has ended in the middle of a step");
    }
    trek_divided_forget(trek_graph_ranks(t.graph)->team);
    elements_of_params(t.graph, &got);
    elements_expect(&got, &before, "after the same number of updates");
    assert_int_equal(epoch(&t, 1), TREK_OK);
    end(&t);
}

/* Two ranks in each process cannot send gradients as bf16, nor keep each part twice. */
static void refuse(trek_comm *comm)
{
    config c = { .shard = TREK_SHARD_STATE, .bucket_bytes = 1024, .second = -1, .ranks = { 2, 2, 2, 2 } };
    training t;
    begin(&c, comm, &t);
    trek_trainer_opts opts = { .comm = comm, .ranks = 2, .build_replica = build, .arg = &t.c, .share_params = TREK_OFF,
                               .shard = TREK_SHARD_STATE, .reduce_dtype = TREK_BF16, .optimizer = divided_optimizer(0) };
    FAILS(trek_trainer_setup(t.graph, &opts), TREK_ERR_UNSUPPORTED, "several ranks in a process that divide the state");
    opts.reduce_dtype = 0;
    opts.min_processes = 2;
    opts.grain = 4;
    FAILS(trek_trainer_setup(t.graph, &opts), TREK_ERR_UNSUPPORTED, "give each rank a process");
    end(&t);
}

/* A graph that is gone has left parts; a program that keeps one of its parameters is told so. */
static void outlive(trek_comm *comm)
{
    config c = { .shard = TREK_SHARD_PARAMETERS, .bucket_bytes = 1024, .second = -1, .width = WIDE };
    training t;
    begin(&c, comm, &t);
    assert_int_equal(epoch(&t, 0), TREK_OK);
    trek_tensor *table = trek_tensor_retain(trek_var_data(net_of(&t)->table));
    end(&t);
    trek_tensor *copy = trek_tensor_clone(table);
    assert_null(copy);
    expect_error(TREK_ERR_STATE, "the graph that trained them is gone");
    trek_tensor_release(table);
    begin(&c, comm, &t); /* of a set-up without parts, all are there */
    t.c.shard = TREK_SHARD_NONE;
    assert_int_equal(epoch(&t, 0), TREK_OK);
    SUCCEEDS(set_up(&t));
    assert_non_null(trek_tensor_data(trek_var_data(net_of(&t)->table)));
    assert_int_equal(epoch(&t, 1), TREK_OK);
    end(&t);
}

static int child(const char *text)
{
    int first, count;
    char path[256];
    alarm(SECONDS);
    several = getenv("TREK_TEST_SEVERAL") != NULL;
    far = getenv("TREK_TEST_FAR") != NULL;
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .engine = getenv("TREK_TEST_ENGINE") });
    if (!comm)
        return fprintf(stderr, "%s\n", trek_error()), 2;
    process = trek_comm_rank(comm);
    if (sscanf(text, "draw,%d,%d", &first, &count) == 2)
        draw(comm, first, count);
    else if (strcmp(text, "measure") == 0)
        measure(comm);
    else if (strcmp(text, "fewer") == 0)
        fewer_buckets(comm);
    else if (strcmp(text, "recompute") == 0)
        recompute(comm);
    else if (strcmp(text, "read") == 0)
        read_alone(comm);
    else if (strcmp(text, "write") == 0)
        write_together(comm);
    else if (sscanf(text, "save,%255s", path) == 1 || sscanf(text, "load,%255s", path) == 1)
        checkpoint(comm, path, text[0] == 'l');
    else if (strncmp(text, "die", 3) == 0)
        die(comm, strcmp(text, "die,update") == 0, strcmp(text, "die,grain") == 0 ? 2 : 0);
    else if (strcmp(text, "refuse") == 0)
        refuse(comm);
    else if (strcmp(text, "lose") == 0)
        lose(comm);
    else if (strcmp(text, "versions") == 0)
        versions(comm);
    else if (strcmp(text, "outlive") == 0)
        outlive(comm);
    else
        return 3;
    trek_comm_free(&comm);
    return trek_error_status() == TREK_OK ? 0 : 4;
}

static const char *words; /* of the child */
static int child_code;
static void run_child(void **state) { child_code = child(words); }

/* --- the tests -------------------------------------------------------------------------------------------------------- */

/* How the processes are joined. */
typedef struct way {
    const char *engine;
    bool several, far;
} way;

static int launch(const char *text, int processes, const way *how)
{
    const char *variables[9] = { "TREK_TEST_CHILD", text, "TREK_TEST_ENGINE", how->engine };
    int n = 4;
    if (how->several)
        variables[n++] = "TREK_TEST_SEVERAL", variables[n++] = "1";
    if (how->far)
        variables[n++] = "TREK_TEST_FAR", variables[n++] = "1";
    return processes_launch(processes, strcmp(how->engine, "mpi") == 0, variables);
}

/* Makes a machine of its own of the calling process. Returns false where the system does not allow it. */
static bool move_away(void)
{
    bool alone = unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    return alone && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64m") == 0;
}

static bool can_move_away(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(move_away() ? 0 : 1);
    return waitpid(pid, &status, 0) == pid && status == 0;
}

/* Ways in which processes are joined; several: with several ranks each. MPI has a test of its own. */
enum { SHARED = 1, SHARED_SEVERAL = 2, GLOO_SEVERAL = 4, FAR = 8, FAR_SEVERAL = 16, MPI = 96, EVERY = 127 };
static const way ways[] = { { "shared", false, false }, { "shared", true, false }, { "gloo", true, false },
                            { "gloo", false, true },
                            { "gloo", true, true },     { "mpi", false, false },   { "mpi", true, false } };

/* Runs it in those of the ways that are available. */
static void expect(const char *text, int processes, int how)
{
    char why[256];
    bool mpi = getenv("TREK_TEST_MPI"), gloo = !mpi && trek_comm_gloo_there(why, sizeof why), away = gloo && can_move_away();
    for (int k = 0; k < (int)(sizeof ways / sizeof *ways); k++) {
        const way *w = &ways[k];
        if (!(how & 1 << k) || (w->engine[0] == 'm') != mpi || (w->engine[0] == 'g' && !gloo) || (w->far && !away))
            continue;
        int code = launch(text, processes, w);
        if (code != 0)
            fail_msg("%s, %d processes, %s%s%s: status %d", text, processes, w->engine, w->several ? ", several ranks each" : "",
                     w->far ? ", on two machines" : "", code);
    }
}

/* Returns `all` of the ways, or in short runs `few` of them: each way still runs, and each case where it differs most. */
static int ways_of(int few, int all) { return test_short() ? few | (all & MPI) : all; }

/* TREK_TEST_DRAWS says how many configurations, and the seed which. */
static void same_bits(void **state)
{
    const char *set = getenv("TREK_TEST_DRAWS");
    int draws = set ? atoi(set) : test_long() ? 48 : test_short() ? 4 : 12, seed = (int)((test_seed() - 1) % 1000000);
    for (int processes = 2; processes <= 3; processes++) {
        char text[64];
        snprintf(text, sizeof text, "draw,%d,%d", 1000 * seed + 100 * processes, draws);
        expect(text, processes, ways_of(processes == 2 ? SHARED_SEVERAL | FAR : SHARED | GLOO_SEVERAL | FAR_SEVERAL, EVERY));
    }
}

static void buckets_become_fewer(void **state) { expect("fewer", 2, SHARED); }

static void peak_is_as_planned(void **state)
{
    expect("measure", 3, ways_of(SHARED_SEVERAL | FAR, SHARED | SHARED_SEVERAL | FAR));
}

static void what_does_not_fit_is_computed_twice(void **state)
{
    expect("recompute", 3, ways_of(SHARED_SEVERAL, SHARED_SEVERAL | FAR));
}

static void processes_read_alone(void **state)
{
    expect("read", 3, ways_of(SHARED | FAR_SEVERAL, SHARED | FAR | FAR_SEVERAL | MPI));
}

static void what_is_written_reaches_all(void **state)
{
    expect("write", 3, ways_of(SHARED_SEVERAL | FAR_SEVERAL, SHARED | SHARED_SEVERAL | FAR_SEVERAL | MPI));
}

/* In one file, and in several. */
static void sets_of_checkpoints(void **state)
{
    char path[] = "/tmp/trek-divided-jobs-XXXXXX", text[256];
    assert_non_null(mkdtemp(path));
    for (int k = 0; k < 2; k++) {
        int how = ways_of(k ? FAR : SHARED_SEVERAL, SHARED_SEVERAL | FAR | MPI);
        snprintf(text, sizeof text, "save,%s/run.safetensors%s", path, k ? ".index.json" : "");
        expect(text, 3, how);
        memcpy(text, "load", 4);
        expect(text, 2, how);
        expect(text, 4, how);
    }
    assert_int_equal(test_remove(path), 0);
}

static void processes_die(void **state)
{
    expect("die,pass", 3, ways_of(GLOO_SEVERAL | FAR, SHARED | GLOO_SEVERAL | FAR));
    expect("die,grain", 3, ways_of(SHARED_SEVERAL | FAR, SHARED_SEVERAL | FAR | FAR_SEVERAL));
    expect("die,update", 3, ways_of(SHARED_SEVERAL, SHARED_SEVERAL | FAR));
    expect("lose", 3, FAR);
}

static void updates_are_counted(void **state) { expect("versions", 3, SHARED | FAR_SEVERAL); }

static void what_is_impossible_is_refused(void **state) { expect("refuse", 2, SHARED); }

static void graphs_end(void **state) { expect("outlive", 2, ways_of(SHARED_SEVERAL, SHARED_SEVERAL | FAR | MPI)); }

int main(void)
{
    words = getenv("TREK_TEST_CHILD");
    trek_pages_guard = true;
    if (words) {
        const char *number = getenv("TREK_RANK");
        if (getenv("TREK_TEST_FAR") && number && atoi(number) % 2 && !move_away())
            return print_message("this process cannot have a /dev/shm of its own\n"), 3;
        const struct CMUnitTest own[] = { cmocka_unit_test(run_child) };
        unsetenv("TREK_TEST_CASE");
        return cmocka_run_group_tests(own, NULL, NULL) ? 1 : child_code;
    }
    if (!processes_launcher_there())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits), cmocka_unit_test(buckets_become_fewer), cmocka_unit_test(peak_is_as_planned),
        cmocka_unit_test(what_does_not_fit_is_computed_twice), cmocka_unit_test(processes_read_alone),
        cmocka_unit_test(what_is_written_reaches_all), cmocka_unit_test(sets_of_checkpoints), cmocka_unit_test(processes_die),
        cmocka_unit_test(updates_are_counted), cmocka_unit_test(what_is_impossible_is_refused), cmocka_unit_test(graphs_end),
    };
    const struct CMUnitTest of_mpi[] = { /* it ends with the first process that dies */
        cmocka_unit_test(same_bits), cmocka_unit_test(processes_read_alone), cmocka_unit_test(what_is_written_reaches_all),
        cmocka_unit_test(sets_of_checkpoints), cmocka_unit_test(graphs_end),
    };
    return getenv("TREK_TEST_MPI") ? cmocka_run_group_tests(of_mpi, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
