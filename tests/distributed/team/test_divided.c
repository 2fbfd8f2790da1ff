/* SPDX-License-Identifier: Apache-2.0 */
/* Divided parameters: a GPT-like model has the bits that it has with whole ones, whatever its ranks, buckets and options; a rank
 * needs its parts, two buckets and its activations; everything that reads parameters gets their values, or is refused; what a
 * program writes between two passes reaches all ranks, and is not lost silently. In all of this, reading what a rank does not
 * have ends the program. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/losses.h"
#include "autograd/norms.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/checkpoint.h"
#include "distributed/stepper.h"
#include "distributed/team/divided.h"
#include "distributed/team/memory.h"
#include "distributed/team/step.h"
#include "distributed/trainer.h"
#include "distributed/trainer_ranks.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/params.h"
#include "nn/recompute.h"
#include "nn/state.h"
#include "nn/state_modules.h"
#include "nn/transformer.h"
#include "optim/averaged.h"
#include "optim/optimizers.h"
#include "tensor/dlpack.h"
#include "tensor/pages.h"
#include "tests/distributed/team/divided_optimizers.h"
#include "tests/support/labelled.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { VOCABULARY = 60, LENGTH = 6, WIDTH = 32, HEADS = 4, LAYERS = 3, SAMPLES = 48, BATCH = 16, LARGE = 128 };

/* --- a small GPT ---------------------------------------------------------------------------------- */

typedef struct config {
    int ranks;
    trek_shard shard;
    int64_t bucket_bytes, grain, width;
    int accumulate, optimizer;
    bool plain; /* no dropout: a pass that fails draws random numbers, too */
    double max_norm;
    const int64_t *limits; /* [ranks] budgets; NULL: see `budgets` */
    bool low, recompute, writes, budgets, unequal, slower, ahead; /* slower: each rank gets half of what the one before it gets */
    trek_amp_products products;
} config;

typedef struct gpt {
    trek_module base;
    trek_module *layers[LAYERS], *norm;
    trek_var *table, *places; /* the table is also the last layer's weight */
    bool writes;              /* a forward changes `places` */
} gpt;

static trek_var *gpt_forward(trek_module *self, trek_var *x)
{
    gpt *m = (gpt *)self;
    trek_var *tokens = trek_cast(x, TREK_I64);
    trek_var *h = trek_add(trek_embedding(tokens, m->table, -1), m->places);
    if (m->writes && trek_tensor_copy_from(trek_var_data(m->places), trek_var_data(trek_mul_scalar(m->places, 0.5))) != TREK_OK)
        return NULL;
    for (int k = 0; k < LAYERS; k++)
        h = trek_forward(m->layers[k], h);
    h = trek_forward(m->norm, trek_select(h, 1, -1));
    return trek_linear(h, m->table, NULL);
}

static const trek_module_class gpt_class = { .name = "gpt", .size = sizeof(gpt), .forward = gpt_forward };

static trek_tensor *numbers(uint32_t stream, trek_shape shape, trek_device device)
{
    int64_t n = trek_shape_numel(shape);
    float *values = malloc((size_t)n * sizeof *values);
    for (int64_t k = 0; k < n; k++)
        values[k] = 0.3f * test_number(stream, (uint32_t)k);
    trek_tensor *made = trek_tensor_from_data(values, shape, TREK_F32, device);
    free(values);
    return made;
}

static trek_graph *build(trek_device device, void *arg)
{
    const config *c = arg;
    int64_t width = c->width ? c->width : WIDTH;
    trek_module *m = trek_module_new(&gpt_class);
    trek_seed(5);
    ((gpt *)m)->writes = c->writes;
    trek_module_param(m, "table", offsetof(gpt, table), numbers(1, trek_dims(VOCABULARY, width), device));
    trek_module_param(m, "places", offsetof(gpt, places), numbers(2, trek_dims(LENGTH, width), device));
    for (int k = 0; k < LAYERS; k++) {
        char name[16];
        trek_module *layer = trek_nn_transformer_encoder_layer_with(&(trek_transformer_opts){
            .d_model = width, .heads = HEADS, .dim_feedforward = 4 * width, .dropout = k == 1 && !c->plain ? 0.1 : TREK_ZERO,
                .norm_first = true,
            .causal = true, .activation = TREK_ACTIVATION_GELU, .device = device });
        snprintf(name, sizeof name, "layer%d", k);
        trek_module_add(m, name, offsetof(gpt, layers) + (size_t)k * sizeof(trek_module *),
                        c->recompute && k > 0 ? trek_nn_recompute(layer) : layer);
    }
    trek_module_add(m, "norm", offsetof(gpt, norm), trek_nn_layer_norm(width, device));
    return trek_flow_build(trek_flow_from(trek_module_check(m)));
}

static trek_loader *make_loader(void)
{
    return trek_loader_new(labelled_tokens(SAMPLES, LENGTH, VOCABULARY),
                           &(trek_loader_opts){ .batch_size = BATCH, .shuffle = true, .seed = 3 });
}

typedef struct training {
    config c;
    trek_graph *graph;
    trek_loader *loader;
    double answer;           /* in a thread that infers */
    bool answers;            /* with the same number each time */
} training;

/* GPU ranks have a GPU each, where there are so many; otherwise all have one. */
static const trek_device *devices_of(const config *c)
{
    static trek_device own[8];
    for (int r = 0; r < 8; r++)
        own[r] = trek_cuda(r);
    return !test_on_cpu() && trek_device_count(TREK_CUDA) >= c->ranks ? own : test_devices();
}

static trek_status try_begin(const config *c, training *t)
{
    static const double uneven[] = { 3, 1, 2, 5, 1, 1, 2 }, slower[] = { 4, 2, 1 };
    const double *shares = c->unequal ? uneven : c->slower ? slower : NULL;
    static const int64_t ample[] = { 1 << 30, 1 << 28, 1 << 29, 1 << 30, 1 << 28, 1 << 27, 1 << 26 };
    *t = (training){ .c = *c };
    trek_seed(7);
    t->graph = build(test_device(), &t->c);
    t->loader = make_loader();
    assert_int_equal(trek_graph_set_loader(t->graph, t->loader, "x"), TREK_OK);
    assert_int_equal(trek_graph_set_loss(t->graph, labelled_loss, NULL), TREK_OK);
    return trek_trainer_setup(t->graph, &(trek_trainer_opts){
        .build_replica = build, .arg = &t->c, .devices = devices_of(c), .ranks = c->ranks, .share_params = TREK_OFF,
        .shard = c->shard, .bucket_bytes = c->bucket_bytes, .grain = c->grain, .accumulate = c->accumulate,
        .max_anchor = TREK_OFF,
        .balance = shares ? 0 : TREK_OFF, .shares = shares, .n_shares = shares ? c->ranks : 0,
        .overlap = c->ahead ? 1 : TREK_OFF, .memory_budget = c->limits ? c->limits : c->budgets ? ample : NULL,
        .n_memory_budget = c->budgets || c->limits ? c->ranks : 0,
        .amp = { .dtype = c->low ? TREK_BF16 : TREK_F32, .products = c->products }, .max_grad_norm = c->max_norm,
        .optimizer = divided_optimizer(c->optimizer) });
}

static void begin(const config *c, training *t)
{
    if (try_begin(c, t) != TREK_OK)
        fail_msg("%s", trek_error());
}

static void end(training *t)
{
    trek_graph_free(&t->graph);
    trek_loader_free(&t->loader);
}

static trek_status epoch(const training *t, int64_t number) { return labelled_epoch(t->graph, number, t->c.accumulate); }

static void train(const config *c, elements *to)
{
    training t;
    begin(c, &t);
    for (int k = 0; k < 2; k++)
        if (epoch(&t, k) != TREK_OK)
            fail_msg("%d ranks, optimizer %d, buckets of %" PRId64 ": %s", c->ranks, c->optimizer, c->bucket_bytes, trek_error());
    elements_of_params(t.graph, to);
    end(&t);
}

/* --- training ----------------------------------------------------------------------------------------- */

static void same_bits(void **state)
{
    static elements got, expected;
    for (int k = 0; k < (test_short_on_device() ? 5 : test_short() ? 12 : 48); k++) {
        uint32_t h = test_hash((uint32_t)(k + 77));
        config c = { .ranks = 2 + k % 6, .shard = TREK_SHARD_GRADIENTS, .bucket_bytes = 4096 << (h & 7),
                     .grain = (h >> 3 & 3) == 0 ? 3 : 0, .accumulate = (int)(h >> 5 & 1) * 2,
                     .optimizer = k % DIVIDED_OPTIMIZERS,
                     .low = h >> 6 & 1, .recompute = h >> 7 & 1, .budgets = h >> 8 & 1, .unequal = h >> 9 & 1,
                     .products = (h >> 10 & 7) == 0 ? TREK_AMP_PRODUCTS_FP8 : TREK_AMP_PRODUCTS_DEFAULT };
        c.low |= c.products != TREK_AMP_PRODUCTS_DEFAULT;
        c.unequal &= c.grain == 0;
        if (c.grain > 0) /* which scales a grain finds depends on the rank that computes it */
            c.products = TREK_AMP_PRODUCTS_DEFAULT;
        train(&c, &expected);
        c.shard = TREK_SHARD_PARAMETERS;
        c.ahead = k % 2 && c.grain == 0;
        trek_pages_guard = test_on_cpu() || k % 4 < 2; /* without it a GPU's memory is used again at once */
        train(&c, &got);
        trek_pages_guard = true;
        char text[120];
        snprintf(text, sizeof text, "draw %d: %d ranks, optimizer %d, buckets of %d%s%s%s%s%s", k, c.ranks, c.optimizer,
                 (int)c.bucket_bytes, c.grain ? ", grains" : "", c.low ? ", bf16" : "", c.recompute ? ", recomputed" : "",
                 c.unequal ? ", unequal" : "", c.ahead ? ", ahead" : "");
        elements_expect(&got, &expected, "%s", text);
    }
}

/* In grains that is so whatever is divided. The norm by which gradients are clipped is that of many pieces, of which a rank has
 * some, and of some a part. */
static void grains_have_the_bits_of_the_whole(void **state)
{
    static elements got, expected;
    for (int ranks = test_short_on_device() ? 3 : 2; ranks <= (test_short() ? 3 : 5); ranks++) {
        config c = { .ranks = ranks, .shard = TREK_SHARD_NONE, .bucket_bytes = ranks % 2 ? 1 << 17 : 4096, .grain = 3,
                     .optimizer = ranks == 4 ? 4 : 0, .width = 64, .max_norm = 0.3, .low = ranks == 3, .budgets = ranks > 3 };
        train(&c, &expected);
        for (int level = TREK_SHARD_STATE; level <= TREK_SHARD_PARAMETERS; level++) {
            c.shard = (trek_shard)level;
            trek_pages_guard = test_on_cpu(); /* without it a GPU's memory is used again at once */
            train(&c, &got);
            trek_pages_guard = true;
            elements_expect(&got, &expected, "level %d, %d ranks", level, ranks);
        }
    }
}

/* A rank has its parts, two buckets of parameters, the gradients that are not sent yet, and its activations; the plan says so. */
static void peak_is_as_planned(void **state)
{
    if (!test_on_cpu() || !trek_memory_account_counts())
        skip();
    for (int k = 0; k < 4; k++) {
        config c = { .ranks = 2 + k, .bucket_bytes = 1 << 16, .width = LARGE, .budgets = true, .accumulate = k % 2 ? 2 : 0,
                     .ahead = k / 2 };
        int64_t activations[2] = { 0 };
        for (int divided = 0; divided < 2; divided++) {
            training t;
            c.shard = divided ? TREK_SHARD_PARAMETERS : TREK_SHARD_GRADIENTS;
            begin(&c, &t);
            if (epoch(&t, 0) != TREK_OK || epoch(&t, 1) != TREK_OK)
                fail_msg("%s", trek_error());
            const trek_team *team = trek_graph_ranks(t.graph)->team;
            const trek_arena *arena = team->replicas[0].arena;
            int64_t whole = 4 * arena->parts[0].count, kept = 0, unit = 4 * arena->unit;
            for (int r = 0; r < c.ranks; r++) {
                const trek_memory_row *row = &team->memory->rows[r];
                int64_t planned = trek_memory_total(row), peak = trek_memory_account_peak(team->memory->accounts[r]);
                kept += row->params;
                activations[divided] = row->activations > activations[divided] ? row->activations : activations[divided];
                if (llabs(peak - planned) > planned / 50)
                    fail_msg("%d ranks, row %d: %" PRId64 " bytes were planned, and %" PRId64 " used", c.ranks, r, planned, peak);
                if (divided && llabs(row->params - (int64_t)(row->part * (double)whole)) > unit && row->part > 0)
                    fail_msg("%d ranks, row %d: %" PRId64 " bytes of parameters", c.ranks, r, row->params);
            }
            assert_int_equal(kept, divided ? whole : whole * c.ranks);
            end(&t);
        }
        /* If a step has one pass, the widest op reads a weight of 4 * LARGE * LARGE numbers, which lies in at most that and one
         * bucket more */
        if (c.accumulate == 0 && activations[1] > activations[0] + 4 * 4 * LARGE * LARGE + (2 + c.ahead) * c.bucket_bytes)
            fail_msg("%d ranks: %" PRId64 " bytes for a pass instead of %" PRId64, c.ranks, activations[1], activations[0]);
    }
}

static int64_t gathered_by_all(const trek_team *team)
{
    int64_t n = 0;
    for (int r = 0; r < team->local_ranks; r++)
        n += trek_divided_gathered(&team->replicas[r], false) + trek_divided_gathered(&team->replicas[r], true);
    return n;
}

/* Returns how many buckets the ranks gather in the steps of an epoch, whoever of them runs how many grains. */
static int64_t gathered_in(const training *t, int64_t number)
{
    const trek_team *team = trek_graph_ranks(t->graph)->team;
    int64_t before = gathered_by_all(team);
    if (epoch(t, number) != TREK_OK)
        fail_msg("%s", trek_error());
    return gathered_by_all(team) - before;
}

/* A gathering serves all passes of a step, in grains or not, where budgets allow it; otherwise each pass gathers, with less
 * memory and the same bits. The plan says which, and is right about the memory. */
static void one_gathering_serves_a_step(void **state)
{
    static elements values[2];
    if (!test_on_cpu() || !trek_memory_account_counts())
        skip();
    for (int k = 0; k < 3; k++) {
        int64_t limits[3] = { 1 << 30, 1 << 30, 1 << 30 }, gathered[2], most = 0;
        config c = { .ranks = 3, .shard = TREK_SHARD_PARAMETERS, .bucket_bytes = 16384, .width = 64, .limits = limits,
                     .grain = k < 2 ? 2 : 0, .accumulate = k > 0 ? 2 : 0 };
        for (int tight = 0; tight < 2; tight++) {
            training t;
            begin(&c, &t);
            const trek_team *team = trek_graph_ranks(t.graph)->team;
            char *text = trek_trainer_plan_text(t.graph);
            assert_non_null(
                strstr(text, tight ? "in each pass of a step by rank 0 (cpu:0), 1 (cpu:1), 2 (cpu:2)\n"
                                   : "once a step, and kept until its update, by rank 0 (cpu:0), 1 (cpu:1), 2 (cpu:2)\n"));
            trek_free(text);
            gathered[tight] = gathered_in(&t, 0);
            int64_t steps = trek_graph_steps(t.graph), buckets = c.ranks * team->replicas[0].reducer->buckets.n;
            if (tight ? gathered[1] < 2 * gathered[0] : gathered[0] > steps * buckets)
                fail_msg("case %d: %" PRId64 " buckets, %" PRId64 " in %" PRId64 " steps", k, gathered[tight], buckets, steps);
            for (int r = 0; r < c.ranks; r++) {
                int64_t planned = trek_memory_total(&team->memory->rows[r]);
                int64_t peak = trek_memory_account_peak(team->memory->accounts[r]);
                if (peak > planned + planned / 50 || (c.grain == 0 && peak < planned - planned / 50))
                    fail_msg("case %d, rank %d: %" PRId64 " bytes were planned, and %" PRId64 " used", k, r, planned, peak);
                most = planned > most ? planned : most;
            }
            elements_of_params(t.graph, &values[tight]);
            end(&t);
            for (int r = 0; r < c.ranks; r++)
                limits[r] = most - (256 << 10); /* a part of what is gathered does not fit */
        }
        if (c.grain > 0) /* otherwise passes add up in the order in which ranks keep them */
            elements_expect(&values[1], &values[0], "case %d", k);
    }
}

/* Budgets of 1 : 2 : 4 for what is divided, and speeds of 4 : 2 : 1: no rank could keep the model. Its bits are those of one rank
 * that has all memory, and no rank uses more than it may. */
static void larger_than_each_rank(void **state)
{
    static const int64_t ample[] = { 1 << 30, 1 << 30, 1 << 30 };
    static elements got, expected;
    int64_t besides[3], whole = 0, params = 0, budgets[3];
    if (!test_on_cpu() || !trek_memory_account_counts())
        skip();
    config c = { .ranks = 3, .shard = TREK_SHARD_PARAMETERS, .bucket_bytes = 1 << 14, .grain = 3,
                 .slower = true, .limits = ample };
    training t;
    begin(&c, &t);
    for (int r = 0; r < 3; r++) {
        const trek_memory_row *row = &trek_graph_ranks(t.graph)->team->memory->rows[r];
        /* with the others' parameters, which are kept for a step */
        besides[r] = trek_memory_total(row) - row->grads - row->state;
        whole += row->params + row->grads + row->state;
        params += row->params;
    }
    end(&t);
    for (int r = 0; r < 3; r++) {
        budgets[r] = besides[r] - params + 2 * c.bucket_bytes + (whole << r) / 7 + whole / 20;
        assert_true(budgets[r] < besides[r] - params + whole);
    }
    c.limits = budgets;
    begin(&c, &t);
    for (int k = 0; k < 2; k++)
        if (epoch(&t, k) != TREK_OK)
            fail_msg("%s", trek_error());
    const trek_team_memory *memory = trek_graph_ranks(t.graph)->team->memory;
    for (int r = 0; r < 3; r++)
        if (trek_memory_account_peak(memory->accounts[r]) > budgets[r] || 10 * memory->rows[r].params < params << r)
            fail_msg("rank %d: %" PRId64 " bytes of %" PRId64 ", %" PRId64 " of parameters", r,
                     trek_memory_account_peak(memory->accounts[r]), budgets[r], memory->rows[r].params);
    elements_of_params(t.graph, &got);
    end(&t);
    train(&(config){ .ranks = 1, .grain = 3 }, &expected);
    elements_expect(&got, &expected, "on three ranks");
}

typedef struct gpu_memory {
    int64_t params, kept, planned, used; /* planned: for a pass, besides what is kept; used: what it was */
} gpu_memory;

static void look_at_gpus(const config *c, gpu_memory *ranks)
{
    training t;
    trek_pages_guard = false; /* with it memory is not used again at once */
    begin(c, &t);
    assert_int_equal(epoch(&t, 0), TREK_OK);
    for (int r = 0; r < c->ranks; r++) {
        const trek_memory_row *row = &trek_graph_ranks(t.graph)->team->memory->rows[r];
        ranks[r] = (gpu_memory){ row->params, trek_memory_usage(trek_cuda(r)).allocated, row->activations, 0 };
        trek_memory_reset_peak(trek_cuda(r));
    }
    assert_int_equal(epoch(&t, 1), TREK_OK);
    for (int r = 0; r < c->ranks; r++)
        ranks[r].used = trek_memory_usage(trek_cuda(r)).allocated_peak - ranks[r].kept;
    end(&t);
    trek_pages_guard = true;
}

/* The same on GPUs of their own, by their allocators. */
static void peak_on_gpus(void **state)
{
    enum { RANKS = 3 };
    gpu_memory whole[RANKS], parts[RANKS];
    if (test_on_cpu() || trek_device_count(TREK_CUDA) < RANKS || trek_pages_size(trek_cuda(0), NULL, 0) > 1 << 16)
        skip(); /* on a real one the model is a few pages */
    config c = { .ranks = RANKS, .bucket_bytes = 1 << 16, .width = 64, .budgets = true, .shard = TREK_SHARD_GRADIENTS };
    look_at_gpus(&c, whole);
    c.shard = TREK_SHARD_PARAMETERS;
    for (int ahead = 0; ahead < 2; ahead++) {
        int64_t kept = 0;
        c.ahead = ahead;
        look_at_gpus(&c, parts);
        for (int r = 0; r < RANKS; r++) {
            kept += parts[r].params;
            if (llabs(parts[r].used - parts[r].planned) > (parts[r].kept + parts[r].planned) / 50)
                fail_msg("rank %d: %" PRId64 " bytes were planned for a pass, and %" PRId64 " used", r, parts[r].planned,
                         parts[r].used);
            assert_int_equal(whole[r].kept - parts[r].kept, whole[r].params - parts[r].params);
            /* the widest op reads a weight of 4 * 64 * 64 numbers */
            if (parts[r].used > whole[r].used + 4 * 4 * 64 * 64 + (2 + ahead) * c.bucket_bytes)
                fail_msg("rank %d: %" PRId64 " bytes for a pass instead of %" PRId64, r, parts[r].used, whole[r].used);
        }
        assert_int_equal(kept, whole[0].params);
    }
}

/* In grains as well: their sums lie in host memory, and no rank has more of a GPU than it was planned to have. */
static void peak_of_grains_on_gpus(void **state)
{
    enum { RANKS = 3 };
    gpu_memory sums[RANKS], steps[RANKS];
    if (test_on_cpu() || trek_device_count(TREK_CUDA) < RANKS || trek_pages_size(trek_cuda(0), NULL, 0) > 1 << 16)
        skip();
    for (int level = TREK_SHARD_GRADIENTS; level <= TREK_SHARD_PARAMETERS; level++) {
        config c = { .ranks = RANKS, .bucket_bytes = 1 << 16, .width = 64, .budgets = true, .shard = (trek_shard)level };
        look_at_gpus(&c, steps);
        c.grain = 3;
        look_at_gpus(&c, sums);
        for (int r = 0; r < RANKS; r++) {
            if (sums[r].used > sums[r].planned + (sums[r].kept + sums[r].planned) / 50)
                fail_msg("level %d, rank %d: %" PRId64 " bytes were planned for a pass, and %" PRId64 " used", level, r,
                         sums[r].planned, sums[r].used);
            if (level == TREK_SHARD_GRADIENTS && sums[r].kept > steps[r].kept + steps[r].kept / 50)
                fail_msg("level %d, rank %d keeps %" PRId64 " bytes, and %" PRId64 " without grains", level, r, sums[r].kept,
                         steps[r].kept);
        }
    }
}

/* From the second step on, what is needed is known, and the next bucket is gathered ahead of its use. How many are depends on
 * when threads run, but the first one of a step always follows an idle thread. */
static void gathers_ahead(void **state)
{
    for (int ahead = 0; ahead < 2; ahead++) {
        config c = { .ranks = 2, .shard = TREK_SHARD_PARAMETERS, .bucket_bytes = test_on_cpu() ? 1 << 18 : 1 << 16,
                     .width = test_on_cpu() ? LARGE : 64, .ahead = ahead };
        training t;
        begin(&c, &t);
        for (int k = 0; k < 4; k++)
            if (epoch(&t, k) != TREK_OK)
                fail_msg("%s", trek_error());
        for (int r = 0; r < c.ranks; r++) {
            const rank_replica *own = &trek_graph_ranks(t.graph)->team->replicas[r];
            int64_t late = trek_divided_gathered(own, false), early = trek_divided_gathered(own, true);
            if (late + early < 50 || (ahead ? 2 * early < late : early > 0))
                fail_msg("rank %d: %" PRId64 " buckets were gathered ahead, and %" PRId64 " when they were needed", r, early,
                         late);
        }
        end(&t);
    }
}

/* --- readers -------------------------------------------------------------------------------------------- */

static char *read_whole(const char *path, long *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)*size + 1);
    assert_int_equal(fread(bytes, 1, (size_t)*size, file), *size);
    fclose(file);
    return bytes;
}

/* Writes a file with `save`, and returns its bytes. */
static char *saved(trek_status (*save)(trek_graph *graph, const char *path), trek_graph *graph, long *size)
{
    char path[] = "/tmp/trek-divided-XXXXXX";
    close(mkstemp(path));
    if (save(graph, path) != TREK_OK)
        fail_msg("%s", trek_error());
    char *bytes = read_whole(path, size);
    unlink(path);
    return bytes;
}

static trek_status save_state(trek_graph *graph, const char *path) { return trek_state_save(trek_graph_module(graph), path); }

static trek_status save_copy(trek_graph *graph, const char *path)
{
    trek_state *state = trek_state_of(trek_graph_module(graph));
    trek_status status = state ? trek_state_write(state, path) : trek_error_status();
    trek_state_free(&state);
    return status;
}

static trek_status save_average(trek_graph *graph, const char *path)
{
    trek_averaged *average = trek_averaged_new(trek_graph_module(graph), &(trek_averaged_opts){ .decay = 0.9 });
    trek_status status = average ? trek_averaged_update(average) : trek_error_status();
    trek_state *state = status == TREK_OK ? trek_averaged_state(average) : NULL;
    status = state ? trek_state_write(state, path) : trek_error_status();
    trek_state_free(&state);
    trek_averaged_free(&average);
    return status;
}

static trek_status save_vector(trek_graph *graph, const char *path)
{
    trek_scope scope = trek_scope_begin();
    trek_params *params = trek_module_params(trek_graph_module(graph));
    trek_var *all = trek_parameters_to_vector(params);
    trek_state *state = all ? trek_state_new() : NULL;
    trek_status status = state ? trek_state_add(state, "all", trek_var_data(all)) : trek_error_status();
    if (status == TREK_OK)
        status = trek_state_write(state, path);
    trek_state_free(&state);
    trek_params_free(&params);
    trek_scope_end(scope);
    return status;
}

static trek_status save_checkpoint(trek_graph *graph, const char *path) { return trek_checkpoint_save(graph, NULL, path); }

/* What the module of rank 0 answers when the program calls it. */
static trek_status save_answer(trek_graph *graph, const char *path)
{
    trek_scope scope = trek_scope_begin();
    trek_module_train(trek_graph_module(graph), false);
    trek_var *x = trek_var_from(trek_tensor_zeros(trek_dims(2, LENGTH), TREK_F32, test_device()));
    trek_var *y = trek_forward(trek_graph_module(graph), x), *z = trek_graph_forward(graph, x);
    trek_state *state = trek_state_new();
    trek_status status = y && z ? trek_state_add(state, "y", trek_var_data(y)) : trek_error_status();
    if (status == TREK_OK)
        status = trek_state_add(state, "z", trek_var_data(z));
    if (status == TREK_OK)
        status = trek_state_write(state, path);
    trek_state_free(&state);
    trek_module_train(trek_graph_module(graph), true);
    trek_scope_end(scope);
    return status;
}

static void readers_get_values(void **state)
{
    static trek_status (*const saves[])(trek_graph *, const char *) = { save_state, save_copy, save_average, save_vector,
                                                                        save_checkpoint, save_answer };
    enum { SAVES = sizeof saves / sizeof *saves };
    for (int ranks = 2; ranks <= 5; ranks += 3) {
        char *expected[SAVES] = { NULL };
        long sizes[SAVES];
        for (int divided = 0; divided < 2; divided++) {
            config c = { .ranks = ranks, .shard = divided ? TREK_SHARD_PARAMETERS : TREK_SHARD_GRADIENTS, .bucket_bytes = 4096 };
            training t;
            begin(&c, &t);
            assert_int_equal(epoch(&t, 0), TREK_OK);
            for (int k = 0; k < SAVES; k++) {
                long size;
                char *bytes = saved(saves[k], t.graph, &size);
                if (divided && (size != sizes[k] || memcmp(bytes, expected[k], (size_t)size) != 0))
                    fail_msg("%d ranks: what save %d has written differs", ranks, k);
                free(divided ? expected[k] : NULL);
                expected[k] = divided ? NULL : bytes;
                free(divided ? bytes : NULL);
                sizes[k] = size;
            }
            end(&t);
        }
    }
}

static gpt *model_of(trek_graph *graph) { return (gpt *)trek_graph_at(graph, "0"); }

/* Pointers to memory that comes and goes are not given away. */
static void pointers_are_refused(void **state)
{
    config c = { .ranks = 2, .shard = TREK_SHARD_PARAMETERS, .bucket_bytes = 4096 };
    training t;
    begin(&c, &t);
    trek_tensor *table = trek_var_data(model_of(t.graph)->table);
    REFUSED(trek_tensor_data(table), TREK_ERR_STATE, "tensor_data: tensor: it is divided");
    REFUSED(trek_tensor_to_dlpack(table), TREK_ERR_STATE, "tensor_to_dlpack: tensor: it is divided");
    trek_comm *comm = trek_ranks_comm(trek_graph_ranks(t.graph)->team->ranks, 0);
    trek_comm *alone = NULL;
    assert_int_equal(trek_comm_local((trek_device[]){ test_device() }, 1, &alone), TREK_OK);
    assert_non_null(comm);
    FAILS(trek_comm_broadcast(alone, table, 0), TREK_ERR_STATE, "broadcast: tensor: rank 0's is divided");
    trek_comm_free(&alone);
    trek_tensor *copy = trek_tensor_clone(table);
    if (test_on_cpu())
        assert_non_null(trek_tensor_data(copy));
    trek_tensor_release(copy);
    assert_int_equal(epoch(&t, 0), TREK_OK);
    end(&t);
    /* when the ranks are gone, parameters are a program's as before */
    t.graph = build(test_device(), &c);
    trek_module *module = trek_graph_module(t.graph);
    assert_int_equal(trek_trainer_setup(t.graph, &(trek_trainer_opts){
        .build_replica = build, .arg = &c, .devices = test_devices(), .ranks = 3, .share_params = TREK_OFF, .shard = c.shard,
        .max_anchor = TREK_OFF, .bucket_bytes = 4096, .optimizer = divided_optimizer(0) }), TREK_OK);
    assert_int_equal(trek_trainer_setup(t.graph, &(trek_trainer_opts){ .ranks = 1, .optimizer = divided_optimizer(0) }), TREK_OK);
    double *values = test_read(trek_var_data(model_of(t.graph)->table));
    for (int k = 0; k < VOCABULARY * WIDTH; k++)
        assert_true(values[k] == 0.3f * test_number(1, (uint32_t)k));
    free(values);
    assert_ptr_equal(module, trek_graph_module(t.graph));
    trek_graph_free(&t.graph);
}

/* The test's own means: what a rank does not have cannot be read. */
static void reading_memory_ends_the_program(void **state)
{
    config c = { .ranks = 2, .shard = TREK_SHARD_PARAMETERS, .bucket_bytes = 4096 };
    training t;
    if (!test_on_cpu())
        skip(); /* no process may touch that */
    begin(&c, &t);
    const trek_arena *arena = trek_graph_ranks(t.graph)->team->replicas[0].arena;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        volatile float sum = 0;
        for (int64_t k = 0; k < arena->parts[0].count; k++)
            sum += ((const float *)(const void *)arena->parts[0].params->data)[k];
        _exit(sum > 0); /* it does not come here */
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    end(&t);
}

static void *infer(void *arg)
{
    training *t = arg;
    trek_status status = TREK_OK;
    for (int k = 0; k < 20 && status == TREK_OK; k++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(trek_tensor_zeros(trek_dims(2, LENGTH), TREK_F32, test_device())), *y;
        y = trek_graph_infer(t->graph, &x, 1, NULL, NULL, 0);
        double sum = y ? trek_var_item(trek_sum(y, trek_dims_all(), false)) : NAN;
        if (k == 0)
            t->answer = sum;
        status = isfinite(sum) && sum == t->answer ? TREK_OK : TREK_ERR_STATE;
        trek_scope_end(scope);
    }
    t->answers = status == TREK_OK;
    return NULL;
}

/* Several threads read rank 0's parameters: none takes away what another one reads. */
static void threads_infer(void **state)
{
    config c = { .ranks = 3, .shard = TREK_SHARD_PARAMETERS, .bucket_bytes = 4096, .plain = true, .ahead = true };
    training t;
    pthread_t threads[4];
    training of[4];
    begin(&c, &t);
    assert_int_equal(epoch(&t, 0), TREK_OK);
    trek_module_train(trek_graph_module(t.graph), false);
    for (int k = 0; k < 4; k++) {
        of[k] = t;
        assert_int_equal(pthread_create(&threads[k], NULL, infer, &of[k]), 0);
    }
    for (int k = 0; k < 4; k++)
        pthread_join(threads[k], NULL);
    for (int k = 0; k < 4; k++)
        assert_true(of[k].answers && of[k].answer == of[0].answer);
    end(&t);
}

/* --- writers ---------------------------------------------------------------------------------------------- */

/* What a program writes between two passes: a state that it loads, an average, initial values. */
static trek_status write_params(training *t, int way, const char *path)
{
    trek_module *module = trek_graph_module(t->graph);
    trek_status status = TREK_OK;
    if (way == 0)
        return trek_state_load(module, path, NULL);
    if (way == 1) {
        trek_tensor *values = numbers(9, trek_var_shape(model_of(t->graph)->table), test_device());
        status = trek_tensor_copy_from(trek_var_data(model_of(t->graph)->table), values);
        trek_tensor_release(values);
        return status;
    }
    if (way == 2) {
        trek_averaged *average = trek_averaged_new(module, &(trek_averaged_opts){ .decay = 0.9 });
        status = epoch(t, 5);
        if (status == TREK_OK)
            status = trek_averaged_update(average);
        if (status == TREK_OK)
            status = trek_averaged_swap(average);
        trek_averaged_free(&average);
        return status;
    }
    trek_seed(11);
    return trek_module_reset(model_of(t->graph)->layers[1]);
}

static void what_is_written_reaches_all(void **state)
{
    static elements got, expected, seen;
    char path[] = "/tmp/trek-divided-XXXXXX";
    close(mkstemp(path));
    for (int way = 0; way < 4; way++) {
        for (int divided = 0; divided < 2; divided++) {
            config c = { .ranks = 3, .shard = divided ? TREK_SHARD_PARAMETERS : TREK_SHARD_GRADIENTS, .bucket_bytes = 8192,
                         .optimizer = way, .plain = true, .ahead = way % 2 };
            training t;
            begin(&c, &t);
            assert_int_equal(epoch(&t, 0), TREK_OK);
            if (way == 0 && !divided)
                assert_int_equal(trek_state_save(trek_graph_module(t.graph), path), TREK_OK);
            assert_int_equal(epoch(&t, 1), TREK_OK);
            if (write_params(&t, way, path) != TREK_OK)
                fail_msg("way %d: %s", way, trek_error());
            elements_of_params(t.graph, &seen); /* on rank 0 */
            if (divided) {
                FAILS(epoch(&t, 2), TREK_ERR_STATE, "call trek_graph_parameters_changed");
                FAILS(trek_graph_step(t.graph), TREK_ERR_STATE, "graph_step: the graph's parameters were written");
                elements_of_params(t.graph, &got);
                elements_expect(&got, &seen, "after a pass that was refused");
                trek_graph_zero_grad(t.graph);
            }
            SUCCEEDS(trek_graph_parameters_changed(t.graph));
            for (int r = 0; r < c.ranks; r++) {
                elements_of_params(trek_graph_replica(t.graph, r), &got);
                elements_expect(&got, &seen, "on a rank");
            }
            if (epoch(&t, 3) != TREK_OK)
                fail_msg("way %d: %s", way, trek_error());
            elements_of_params(t.graph, divided ? &got : &expected);
            end(&t);
        }
        elements_expect(&got, &expected, "what was trained after it");
    }
    unlink(path);
}

/* A module that writes its parameters in a pass would write a copy. */
static void writing_in_a_pass_is_refused(void **state)
{
    config c = { .ranks = 2, .shard = TREK_SHARD_PARAMETERS, .bucket_bytes = 4096, .writes = true };
    training t;
    begin(&c, &t);
    FAILS(epoch(&t, 0), TREK_ERR_UNSUPPORTED, "only the optimizer can");
    for (int r = 0; r < 2; r++)
        model_of(trek_graph_replica(t.graph, r))->writes = false;
    assert_int_equal(trek_graph_zero_grad(t.graph), TREK_OK);
    assert_int_equal(epoch(&t, 1), TREK_OK);
    end(&t);
}

int main(void)
{
    setenv("TREK_FAKE_GPUS", "4", 0);
    trek_pages_guard = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(same_bits, clear_error),
        cmocka_unit_test_setup(grains_have_the_bits_of_the_whole, clear_error),
        cmocka_unit_test_setup(peak_is_as_planned, clear_error),
        cmocka_unit_test_setup(one_gathering_serves_a_step, clear_error),
        cmocka_unit_test_setup(larger_than_each_rank, clear_error),
        cmocka_unit_test_setup(peak_on_gpus, clear_error), cmocka_unit_test_setup(peak_of_grains_on_gpus, clear_error),
        cmocka_unit_test_setup(gathers_ahead, clear_error),
        cmocka_unit_test_setup(readers_get_values, clear_error), cmocka_unit_test_setup(pointers_are_refused, clear_error),
        cmocka_unit_test_setup(reading_memory_ends_the_program, clear_error),
        cmocka_unit_test_setup(threads_infer, clear_error),
        cmocka_unit_test_setup(what_is_written_reaches_all, clear_error),
        cmocka_unit_test_setup(writing_in_a_pass_is_refused, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
