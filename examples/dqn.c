/* SPDX-License-Identifier: Apache-2.0 */
/* Balances a pole on a cart by deep Q-learning (Mnih et al., 2015; double: van Hasselt et al., 2016): a memory of past steps,
 * updates with random parts of it, and a second network that follows the first one slowly and estimates future rewards.
 *
 *   dqn [--updates N] [--batch-size N] [--lr X] [--ranks N] [--seed N] [--checkpoint FILE] [--expect STEPS] ...
 *   trek-run -n 2 ./dqn ...        the same on two processes
 *
 * After each round of 250 updates the network is tested. The carts and the memory are the same on every process; each process
 * takes its part of every batch. The run is saved in FILE (the network and its optimizer) and FILE.memory (everything else).
 * --expect: fails if carts stay up for fewer steps than this at the end. */
#include "cartpole.h"
#include "training.h"

enum { CARTS = 8, LIMIT = 200 /* steps of an episode */, MEMORY = 20000, WIDTH = 64, WARM = 500, EVERY = 250, TRIALS = 20 };

typedef struct options {
    training common;
    int updates, explore;
    double discount, follow, expect;
} options;

/* The state of a run except the two networks. Kept as it lies here, as numbers of one kind for each part. */
typedef struct player {
    float seen[MEMORY][CART_STATE], after[MEMORY][CART_STATE], alive[MEMORY];
    int64_t done[MEMORY];
    int64_t counts[4];         /* transitions so far, episodes so far, updates, and of the draws */
    cart carts[CARTS];
} player;

static trek_graph *build_model(trek_device device, void *arg)
{
    (void)arg;
    return trek_flow_build(trek_flow_from(trek_nn_sequential((trek_module *[]){
        trek_nn_linear(CART_STATE, WIDTH, device), trek_nn_relu(), trek_nn_linear(WIDTH, WIDTH, device), trek_nn_relu(),
        trek_nn_linear(WIDTH, CART_ACTIONS, device) }, 5)));
}

/* Number k of the run's stream, uniform in [0, 1): a function of its place alone, so that a run can go on anywhere. */
static double draw(player *p, uint64_t seed)
{
    uint64_t h = (seed << 40) + (uint64_t)++p->counts[3];
    h ^= h >> 33, h *= 0xff51afd7ed558ccdu, h ^= h >> 33, h *= 0xc4ceb9fe1a85ec53u, h ^= h >> 33;
    return (double)(h >> 40) * 0x1p-24;
}

/* --- playing ---------------------------------------------------------------------------- */

/* What the model would do with each of n states. */
static bool choose(trek_graph *model, float (*states)[CART_STATE], int n, int64_t *actions)
{
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_from_data(states, trek_dims(n, CART_STATE), TREK_F32, trek_device_default()));
    trek_var *best = trek_argmax(trek_graph_infer(model, &x, 1, NULL, NULL, 0), trek_dims(1), false);
    bool good = best && trek_tensor_to_host(trek_var_data(best), TREK_I64, actions, (size_t)n * sizeof *actions) == TREK_OK;
    trek_scope_end(scope);
    return good;
}

/* One step of each cart; ever fewer of them at random. */
static bool play(const options *o, player *p, trek_graph *model)
{
    float states[CARTS][CART_STATE];
    int64_t actions[CARTS];
    double random = fmax(0.05, 1 - (double)p->counts[2] / o->explore);
    for (int c = 0; c < CARTS; c++)
        cart_observe(&p->carts[c], states[c]);
    if (!choose(model, states, CARTS, actions))
        return false;
    for (int c = 0; c < CARTS; c++) {
        int at = (int)(p->counts[0]++ % MEMORY);
        cart *cart = &p->carts[c];
        if (draw(p, o->common.seed) < random)
            actions[c] = draw(p, o->common.seed) < 0.5;
        cart_observe(cart, p->seen[at]);
        cart_push(cart, (int)actions[c]);
        cart_observe(cart, p->after[at]);
        p->done[at] = actions[c];
        p->alive[at] = !cart->fell; /* where the time is up, the future still has a worth */
        if (cart->fell || cart->steps == LIMIT)
            cart_begin(cart, (uint32_t)o->common.seed + (uint32_t)(++p->counts[1]));
    }
    return true;
}

/* Steps that a cart stays up without chance, in the mean of some trials that training has not seen. */
static double try_it(trek_graph *model, uint32_t seed)
{
    cart carts[TRIALS];
    float states[TRIALS][CART_STATE];
    int64_t actions[TRIALS];
    int sum = 0;
    for (int k = 0; k < TRIALS; k++)
        cart_begin(&carts[k], 0x80000000u + seed * TRIALS + (uint32_t)k);
    for (int step = 0; step < LIMIT; step++) {
        for (int k = 0; k < TRIALS; k++)
            cart_observe(&carts[k], states[k]);
        if (!choose(model, states, TRIALS, actions))
            return 0;
        for (int k = 0; k < TRIALS; k++)
            if (!carts[k].fell) {
                cart_push(&carts[k], (int)actions[k]);
                sum++;
            }
    }
    return (double)sum / TRIALS;
}

/* --- learning ------------------------------------------------------------------------------ */

static trek_var *rows_of(const void *values, int64_t n, int64_t columns, trek_dtype dtype)
{
    return trek_var_from(trek_tensor_from_data(values, trek_dims(n, columns), dtype, trek_device_default()));
}

/* One step on a random part of the memory, of which this process has rows first .. first + n. */
static double learn(const options *o, player *p, trek_graph *model, trek_graph *target, int64_t first, int64_t n)
{
    static float seen[4096][CART_STATE], after[4096][CART_STATE], alive[4096];
    static int64_t done[4096];
    int64_t there = p->counts[0] < MEMORY ? p->counts[0] : MEMORY;
    for (int k = 0; k < o->common.batch_size; k++) {
        int64_t at = (int64_t)(draw(p, o->common.seed) * (double)there);
        memcpy(seen[k], p->seen[at], sizeof seen[k]);
        memcpy(after[k], p->after[at], sizeof after[k]);
        alive[k] = p->alive[at];
        done[k] = p->done[at];
    }
    trek_scope scope = trek_scope_begin();
    trek_var *next = rows_of(after[first], n, CART_STATE, TREK_F32), *goes_on = rows_of(&alive[first], n, 1, TREK_F32);
    trek_no_grad_begin(); /* the present network chooses, the slow one says what that is worth */
    trek_var *best = trek_argmax(trek_graph_infer(model, &next, 1, NULL, NULL, 0), trek_dims(1), true);
    trek_var *worth = trek_gather(trek_graph_infer(target, &next, 1, NULL, NULL, 0), 1, best);
    worth = trek_mul_scalar(trek_mul(worth, goes_on), o->discount);
    worth = trek_add_scalar(worth, 1); /* each step that is survived */
    trek_no_grad_end();
    trek_var *values = trek_graph_forward(model, rows_of(seen[first], n, CART_STATE, TREK_F32));
    trek_var *loss = trek_smooth_l1_loss(trek_gather(values, 1, rows_of(&done[first], n, 1, TREK_I64)), worth, 1);
    trek_graph_backward(model, loss);
    trek_graph_step(model);
    trek_module_lerp(trek_graph_module(target), trek_graph_module(model), o->follow);
    double value = loss ? trek_var_item(loss) : NAN;
    trek_scope_end(scope);
    p->counts[2]++;
    return value;
}

/* --- keeping --------------------------------------------------------------------------------- */

typedef struct part { const char *name; void *values; size_t bytes; } part;

/* The player's parts as bytes; a later program of the same build reads them. */
static int parts_of(player *p, part list[6])
{
    const part all[] = { { "memory.seen", p->seen, sizeof p->seen }, { "memory.after", p->after, sizeof p->after },
                         { "memory.alive", p->alive, sizeof p->alive }, { "memory.done", p->done, sizeof p->done },
                         { "memory.counts", p->counts, sizeof p->counts }, { "memory.carts", p->carts, sizeof p->carts } };
    memcpy(list, all, sizeof all);
    return (int)(sizeof all / sizeof *all);
}

static void keep(const options *o, player *p, trek_graph *model, trek_graph *target, bool first)
{
    char path[4096];
    part parts[6];
    snprintf(path, sizeof path, "%s.memory", o->common.checkpoint);
    trek_state *state = first ? trek_state_of(trek_graph_module(target)) : NULL; /* the slow network's values, and the rest */
    for (int k = 0, n = parts_of(p, parts); k < n && state; k++) {
        trek_tensor *bytes = trek_tensor_from_data(parts[k].values, trek_dims((int64_t)parts[k].bytes), TREK_U8, trek_cpu(0));
        trek_state_add(state, parts[k].name, bytes);
        trek_tensor_release(bytes);
    }
    if (state)
        trek_state_write(state, path);
    trek_state_free(&state);
    trek_checkpoint_save(model, NULL, o->common.checkpoint);
}

static void go_on(const options *o, player *p, trek_graph *model, trek_graph *target)
{
    char path[4096];
    part parts[6];
    snprintf(path, sizeof path, "%s.memory", o->common.checkpoint);
    trek_state *state = trek_state_read(path);
    for (int k = 0, n = parts_of(p, parts); k < n && state; k++) {
        trek_tensor *bytes = trek_state_find(state, parts[k].name);
        if (!bytes || trek_tensor_to_host(bytes, TREK_U8, parts[k].values, parts[k].bytes) != TREK_OK)
            trek_fail(TREK_ERR_FORMAT, "%s: no %s that fits", path, parts[k].name);
    }
    if (state && trek_error_status() == TREK_OK)
        trek_state_apply_with(state, trek_graph_module(target), &(trek_state_load_opts){ .allow_unexpected = true }, NULL);
    trek_state_free(&state);
    if (trek_checkpoint_load(model, NULL, o->common.checkpoint) == TREK_OK && trek_graph_steps(model) != p->counts[2])
        trek_fail(TREK_ERR_FORMAT, "%s and %s were not saved at the same time", o->common.checkpoint, path);
}

/* --- the program -------------------------------------------------------------------------------- */

static double train(const options *o, player *p, trek_graph *model, trek_graph *target, trek_comm *job, trek_progress *progress)
{
    int64_t first, n;
    double steps = NAN;
    trek_comm_samples(job, o->common.batch_size, &first, &n);
    while (p->counts[2] < o->updates && !trek_stop_requested() && trek_error_status() == TREK_OK) {
        if (!play(o, p, model) || p->counts[0] < WARM)
            continue;
        double loss = learn(o, p, model, target, first, n);
        int64_t row = (p->counts[2] - 1) / EVERY;
        trek_progress_update(progress, row, (p->counts[2] - 1) % EVERY + 1, loss);
        if (p->counts[2] % EVERY == 0 || p->counts[2] == o->updates) {
            steps = try_it(model, (uint32_t)o->common.seed);
            trek_progress_epoch(progress, row, "steps upright", steps);
            if (o->common.checkpoint)
                keep(o, p, model, target, trek_comm_rank(job) == 0);
        }
    }
    if (o->common.checkpoint && trek_stop_requested())
        keep(o, p, model, target, trek_comm_rank(job) == 0);
    return steps;
}

int main(int argc, char **argv)
{
    static player p;
    options o = { .common = { .batch_size = 128, .lr = 1e-3, .seed = 1, .without = "--epochs --data" }, .updates = 5000,
                  .explore = 1000, .discount = 0.99, .follow = 0.01 };
    const argument own[] = {
        { "--updates", "N", "number of updates of the network; eight carts make a step before each", .whole = &o.updates,
          .least = 1 },
        { "--explore", "N", "number of updates until only 5 % of the steps are random", .whole = &o.explore, .least = 1 },
        { "--discount", "X", "of a step later", .number = &o.discount, .least = 0, .most = 1 },
        { "--follow", "X", "fraction by which the target network moves towards the trained one in each update",
          .number = &o.follow, .least = 1e-6,
          .most = 1 },
        { "--expect", "STEPS", "fails if carts stay up for fewer steps than this at the end", .number = &o.expect, .least = 0,
          .most = LIMIT },
    };
    training_read(argc, argv, "Balances a pole on a cart by deep Q-learning.", &o.common, own, 5);
    if (o.common.batch_size > 4096)
        return fprintf(stderr, "--batch-size must be at most 4096\n"), 2;
    training_stop_by_signals();
    trek_seed(o.common.seed);
    trek_comm *job = trek_comm_init(NULL); /* of the processes of the job; alone a world of one */
    bool first = trek_comm_rank(job) == 0;
    trek_graph *model = build_model(trek_device_default(), NULL), *target = build_model(trek_device_default(), NULL);
    trek_trainer_setup(model, &(trek_trainer_opts){
        .build_replica = build_model, .ranks = o.common.ranks, .max_grad_norm = 10,
        .optimizer = trek_adam(&(trek_adam_opts){ .lr = o.common.lr }) });
    trek_module_copy(trek_graph_module(target), trek_graph_module(model));
    for (int c = 0; c < CARTS; c++)
        cart_begin(&p.carts[c], (uint32_t)o.common.seed + (uint32_t)(++p.counts[1]));
    if (file_is_there(o.common.checkpoint))
        go_on(&o, &p, model, target);
    trek_progress *progress = first && !o.common.quiet ? trek_progress_new_with(&(trek_progress_opts){
        .epochs = (o.updates + EVERY - 1) / EVERY, .batches = EVERY, .unit = "round" }) : NULL;
    double steps = train(&o, &p, model, target, job, progress);
    trek_progress_free(&progress);
    if (trek_error_status() == TREK_OK && first && isfinite(steps) && !trek_stop_requested()) {
        if (o.common.save)
            trek_state_save(trek_graph_module(model), o.common.save);
        printf("carts stay up for %.1f of %d steps\n", steps, LIMIT);
        if (steps < o.expect)
            trek_fail(TREK_ERR_STATE, "that is less than %.1f", o.expect);
    }
    trek_graph_free(&target);
    trek_graph_free(&model);
    trek_comm_free(&job);
    return training_end();
}
