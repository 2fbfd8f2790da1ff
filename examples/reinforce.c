/* SPDX-License-Identifier: Apache-2.0 */
/* Policy gradients (REINFORCE; Williams, 1992): a policy learns to balance a pole on a cart
 * (Barto, Sutton and Anderson, 1983). Ranks play episodes of their own, which differ in
 * length, so that each has another number of steps to learn from; trek_ddp weighs the
 * ranks' gradients by them, which gives the gradient of the mean over all steps.
 *
 *   reinforce [--ranks N] [--updates N] [--episodes N] [--seed N] [--expect RETURN]
 *
 * --ranks: rank threads of this process. Under a launcher (trek-run -n 2 reinforce) every
 * process is a rank instead. --episodes: played by all ranks together before an update.
 * --expect: fails unless the mean return of the last ten updates is that much. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/arguments.h"
#include "trek.h"

enum { STATE = 4, ACTIONS = 2, WIDTH = 32, LIMIT = 200 /* steps of an episode */, MAX_EPISODES = 64 };

typedef struct options {
    int ranks, updates, episodes;
    double expect;
    uint64_t seed;
} options;

typedef struct job {
    options o;
    trek_ranks *ranks;  /* NULL: each process is a rank */
    double last_return; /* rank 0's, in the end */
} job;

/* --- the cart and the pole ------------------------------------------------------------- */

typedef struct episode {
    double x, speed, angle, turning;
    uint32_t random;
    int steps;
    bool over;
    float states[LIMIT][STATE];
    int actions[LIMIT];
} episode;

static double next_random(episode *e)
{
    e->random ^= e->random << 13, e->random ^= e->random >> 17, e->random ^= e->random << 5;
    return ((e->random >> 8) + 0.5) * 0x1p-24;
}

static void episode_begin(episode *e, uint32_t seed)
{
    e->random = seed * 0x9e3779b9u ^ 0x7f4a7c15u;
    e->random += e->random == 0;
    for (int k = 0; k < 8; k++)
        next_random(e);
    e->steps = 0;
    e->over = false;
    double *state[] = { &e->x, &e->speed, &e->angle, &e->turning };
    for (int k = 0; k < STATE; k++)
        *state[k] = 0.1 * next_random(e) - 0.05;
}

static void observe(const episode *e, float *state)
{
    state[0] = (float)e->x, state[1] = (float)e->speed, state[2] = (float)e->angle, state[3] = (float)e->turning;
}

/* Equations of motion without friction, by Euler's method: 1 kg cart, 0.1 kg pole 1 m long, +-10 N, 20 ms. */
static void push(episode *e, int action)
{
    const double gravity = 9.8, pole = 0.1, total = 1.1, half = 0.5, dt = 0.02;
    double force = action ? 10 : -10, s = sin(e->angle), c = cos(e->angle);
    double common = (force + pole * half * e->turning * e->turning * s) / total;
    double turn = (gravity * s - c * common) / (half * (4.0 / 3.0 - pole * c * c / total));
    double pull = common - pole * half * turn * c / total;
    e->x += dt * e->speed;
    e->speed += dt * pull;
    e->angle += dt * e->turning;
    e->turning += dt * turn;
    e->over = fabs(e->x) > 2.4 || fabs(e->angle) > 12 * acos(-1.0) / 180 || e->steps == LIMIT;
}

/* --- playing ------------------------------------------------------------------------------ */

/* One step of all episodes that go on; their number. */
static int play_step(trek_module *policy, episode *episodes, int n)
{
    float states[MAX_EPISODES][STATE], chances[MAX_EPISODES][ACTIONS];
    episode *playing[MAX_EPISODES];
    int count = 0;
    for (int k = 0; k < n; k++)
        if (!episodes[k].over) {
            observe(&episodes[k], states[count]);
            playing[count++] = &episodes[k];
        }
    if (count == 0)
        return 0;
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_from_data(states, trek_dims(count, STATE), TREK_F32, trek_cpu(0)));
    trek_var *y = trek_softmax(trek_forward(policy, x), 1);
    bool good = y && trek_tensor_to_host(trek_var_data(y), TREK_F32, chances, (size_t)count * sizeof chances[0]) == TREK_OK;
    trek_scope_end(scope);
    for (int k = 0; k < count && good; k++) {
        episode *e = playing[k];
        int action = next_random(e) >= chances[k][0];
        memcpy(e->states[e->steps], states[k], sizeof states[k]);
        e->actions[e->steps++] = action;
        push(e, action);
    }
    return good ? count : 0;
}

/* The steps of this rank's episodes; an episode is the same on whatever rank. */
static int play(trek_module *policy, episode *episodes, int n, uint32_t first_seed)
{
    int steps = 0;
    for (int k = 0; k < n; k++)
        episode_begin(&episodes[k], first_seed + (uint32_t)k);
    trek_no_grad_begin();
    while (play_step(policy, episodes, n) > 0)
        ;
    trek_no_grad_end();
    for (int k = 0; k < n; k++)
        steps += episodes[k].steps;
    return steps;
}

/* --- learning ------------------------------------------------------------------------------- */

/* What came of each step: the reward is 1 for each one survived, discounted. */
static void write_returns(const episode *episodes, int n, float *returns)
{
    const double discount = 0.99;
    for (int k = 0, at = 0; k < n; at += episodes[k++].steps) {
        double sum = 0;
        for (int s = episodes[k].steps - 1; s >= 0; s--)
            returns[at + s] = (float)(sum = 1 + discount * sum);
    }
}

/* Made comparable by mean and deviation over the steps of all ranks. */
static void normalise(trek_comm *comm, float *returns, int steps)
{
    double sums[3] = { steps, 0, 0 };
    for (int s = 0; s < steps; s++) {
        sums[1] += returns[s];
        sums[2] += (double)returns[s] * returns[s];
    }
    for (int k = 0; k < 3; k++)
        trek_comm_all_reduce_scalar(comm, &sums[k], TREK_SUM);
    double mean = sums[1] / sums[0], deviation = sqrt(fmax(sums[2] / sums[0] - mean * mean, 0)) + 1e-6;
    for (int s = 0; s < steps; s++)
        returns[s] = (float)((returns[s] - mean) / deviation);
}

/* Mean over this rank's steps of -advantage x log(chance of what was done); NULL without steps. */
static trek_var *policy_loss(trek_module *policy, const episode *episodes, int n, const float *advantages, int steps)
{
    float *states = malloc((size_t)(steps * STATE + 1) * sizeof *states);
    int64_t *actions = malloc((size_t)(steps + 1) * sizeof *actions);
    trek_var *loss = NULL;
    int at = 0;
    for (int k = 0; k < n && states && actions; k++)
        for (int s = 0; s < episodes[k].steps; s++, at++) {
            memcpy(states + (size_t)at * STATE, episodes[k].states[s], STATE * sizeof *states);
            actions[at] = episodes[k].actions[s];
        }
    if (steps > 0 && at == steps) {
        trek_var *x = trek_var_from(trek_tensor_from_data(states, trek_dims(steps, STATE), TREK_F32, trek_cpu(0)));
        trek_var *done = trek_var_from(trek_tensor_from_data(actions, trek_dims(steps, 1), TREK_I64, trek_cpu(0)));
        trek_var *worth = trek_var_from(trek_tensor_from_data(advantages, trek_dims(steps, 1), TREK_F32, trek_cpu(0)));
        trek_var *chances = trek_gather(trek_log_softmax(trek_forward(policy, x), 1), done, 1);
        loss = trek_neg(trek_mean(trek_mul(chances, worth), trek_dims_none(), false));
    }
    free(states);
    free(actions);
    return loss;
}

static double update(trek_ddp *ddp, trek_optimizer *optimizer, trek_comm *comm, const options *o, episode *episodes, int number)
{
    static _Thread_local float returns[MAX_EPISODES * LIMIT];
    trek_module *policy = trek_ddp_replica_module(ddp, 0);
    int64_t first, n;
    trek_comm_samples(comm, o->episodes, &first, &n);
    int steps = play(policy, episodes, (int)n, (uint32_t)o->seed + (uint32_t)(number * o->episodes + first));
    write_returns(episodes, (int)n, returns);
    normalise(comm, returns, steps);
    trek_scope scope = trek_scope_begin();
    trek_var *loss = policy_loss(policy, episodes, (int)n, returns, steps);
    if (loss)
        trek_backward(loss);
    trek_scope_end(scope);
    trek_ddp_reduce_gradients_weighted(ddp, &(double){ steps }); /* a rank without episodes takes part with 0 */
    trek_optimizer_step(optimizer);
    trek_optimizer_zero_grad(optimizer);
    double all = steps;
    trek_comm_all_reduce_scalar(comm, &all, TREK_SUM);
    return all / o->episodes; /* the return that counts: steps survived */
}

/* What every rank runs, as a thread or as a process. */
static trek_status train(job *j, trek_comm *comm)
{
    const options *o = &j->o;
    trek_device device = trek_cpu(0);
    trek_ddp *ddp = trek_ddp_wrap_process(trek_nn_sequential(3, (trek_module *[]){
        trek_nn_linear(STATE, WIDTH, device), trek_nn_tanh(), trek_nn_linear(WIDTH, ACTIONS, device) }), comm, NULL);
    trek_params *params = trek_module_params(trek_ddp_module(ddp));
    trek_optimizer *optimizer = trek_optimizer_new(trek_adam((trek_adam_opts){ .lr = 1e-2 }), params);
    episode *episodes = calloc(MAX_EPISODES, sizeof *episodes);
    double recent = 0, last = 0;
    for (int k = 0; k < o->updates && episodes && trek_error_status() == TREK_OK; k++) {
        recent += update(ddp, optimizer, comm, o, episodes, k);
        if ((k + 1) % 10 != 0)
            continue;
        last = recent / 10;
        recent = 0;
        if (trek_comm_rank(comm) == 0)
            printf("update %4d  mean return %6.1f of %d\n", k + 1, last, LIMIT);
    }
    if (trek_comm_rank(comm) == 0)
        j->last_return = last;
    free(episodes);
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_ddp_free(&ddp);
    return trek_error_status();
}

static trek_status rank_thread(int rank, void *arg)
{
    job *j = arg;
    return train(j, trek_ranks_comm(j->ranks, rank));
}

/* --- the program ------------------------------------------------------------------------------ */

static bool parse(options *o, int argc, char **argv)
{
    const argument list[] = {
        { "--ranks", "N", .whole = &o->ranks, .least = 1, .most = 1024 },
        { "--updates", "N", .whole = &o->updates, .least = 10 },
        { "--episodes", "N", .whole = &o->episodes, .least = 1, .most = MAX_EPISODES },
        { "--seed", "N", .seed = &o->seed },
        { "--expect", "RETURN", .number = &o->expect, .least = 0 },
    };
    return arguments_read(argc, argv, list, sizeof list / sizeof *list);
}

int main(int argc, char **argv)
{
    job j = { .o = { .ranks = 2, .updates = 100, .episodes = 16, .seed = 1 } };
    if (!parse(&j.o, argc, argv))
        return 2;
    trek_seed(j.o.seed);
    bool first = true;
    if (trek_comm_world_described(NULL) > 1) {
        trek_comm *comm = trek_comm_init(NULL);
        if (comm)
            train(&j, comm);
        first = trek_comm_rank(comm) == 0;
        trek_comm_free(&comm);
    } else if ((j.ranks = trek_ranks_new(NULL, j.o.ranks))) {
        trek_ranks_run(j.ranks, rank_thread, &j);
        trek_ranks_free(&j.ranks);
    }
    trek_status status = trek_error_status();
    if (status != TREK_OK)
        fprintf(stderr, "%s\n", trek_error());
    if (status == TREK_OK && first && j.last_return < j.o.expect)
        fprintf(stderr, "the mean return is %.1f, not %.1f\n", j.last_return, j.o.expect);
    return status != TREK_OK || (first && j.last_return < j.o.expect);
}
