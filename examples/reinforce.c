/* SPDX-License-Identifier: Apache-2.0 */
/* Policy gradients (REINFORCE; Williams, 1992): trains a policy that balances a pole on a cart (Barto, Sutton and Anderson,
 * 1983). Each rank plays its own episodes. They differ in length, so that each rank has another number of steps to learn from;
 * trek_ddp weights the ranks' gradients by these numbers, which gives the gradient of the mean over all steps.
 *
 *   reinforce [--updates N] [--episodes N] [--lr X] [--ranks N] [--seed N] [--checkpoint FILE] [--save FILE] ...
 *
 * --ranks: number of rank threads of this process. Under a launcher (trek-run -n 2 ./reinforce) every process is one rank
 * instead. --episodes: number of episodes that all ranks together play before an update. Ten updates are a round. --expect: fails
 * if the mean return of the last ten updates is lower. */
#include <math.h>

#include "cartpole.h"
#include "kept.h"
#include "training.h"

enum { WIDTH = 32, LIMIT = 200 /* steps of an episode */, MAX_EPISODES = 64, EVERY = 10 };

typedef struct options {
    training common;
    int updates, episodes;
    double expect;
} options;

typedef struct job {
    options o;
    trek_ranks *ranks;  /* NULL: each process is a rank */
    double last_return; /* rank 0's, in the end */
} job;

typedef struct episode {
    cart cart;
    int steps;
    bool over;
    float states[LIMIT][CART_STATE];
    int actions[LIMIT];
} episode;

/* --- playing ------------------------------------------------------------------------------ */

/* One step of all episodes that go on; their number. */
static int play_step(trek_module *policy, episode *episodes, int n)
{
    float states[MAX_EPISODES][CART_STATE], chances[MAX_EPISODES][CART_ACTIONS];
    episode *playing[MAX_EPISODES];
    int count = 0;
    for (int k = 0; k < n; k++)
        if (!episodes[k].over) {
            cart_observe(&episodes[k].cart, states[count]);
            playing[count++] = &episodes[k];
        }
    if (count == 0)
        return 0;
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_from_data(states, trek_dims(count, CART_STATE), TREK_F32, trek_cpu(0)));
    trek_var *y = trek_softmax(trek_forward(policy, x), 1);
    bool good = y && trek_tensor_to_host(trek_var_data(y), TREK_F32, chances, (size_t)count * sizeof chances[0]) == TREK_OK;
    trek_scope_end(scope);
    for (int k = 0; k < count && good; k++) {
        episode *e = playing[k];
        int action = cart_random(&e->cart) >= chances[k][0];
        memcpy(e->states[e->steps], states[k], sizeof states[k]);
        e->actions[e->steps++] = action;
        cart_push(&e->cart, action);
        e->over = e->cart.fell || e->steps == LIMIT;
    }
    return good ? count : 0;
}

/* The steps of this rank's episodes; an episode is the same on whatever rank. */
static int play(trek_module *policy, episode *episodes, int n, uint32_t first_seed)
{
    int steps = 0;
    for (int k = 0; k < n; k++) {
        cart_begin(&episodes[k].cart, first_seed + (uint32_t)k);
        episodes[k].steps = 0;
        episodes[k].over = false;
    }
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
        trek_comm_all_reduce_scalar(comm, &sums[k], TREK_REDUCTION_SUM);
    double mean = sums[1] / sums[0], deviation = sqrt(fmax(sums[2] / sums[0] - mean * mean, 0)) + 1e-6;
    for (int s = 0; s < steps; s++)
        returns[s] = (float)((returns[s] - mean) / deviation);
}

/* Mean over this rank's steps of -advantage x log(chance of what was done); NULL without steps. */
static trek_var *policy_loss(trek_module *policy, const episode *episodes, int n, const float *advantages, int steps)
{
    float *states = malloc((size_t)(steps * CART_STATE + 1) * sizeof *states);
    int64_t *actions = malloc((size_t)(steps + 1) * sizeof *actions);
    trek_var *loss = NULL;
    int at = 0;
    for (int k = 0; k < n && states && actions; k++)
        for (int s = 0; s < episodes[k].steps; s++, at++) {
            memcpy(states + (size_t)at * CART_STATE, episodes[k].states[s], CART_STATE * sizeof *states);
            actions[at] = episodes[k].actions[s];
        }
    if (steps > 0 && at == steps) {
        trek_var *x = trek_var_from(trek_tensor_from_data(states, trek_dims(steps, CART_STATE), TREK_F32, trek_cpu(0)));
        trek_var *done = trek_var_from(trek_tensor_from_data(actions, trek_dims(steps, 1), TREK_I64, trek_cpu(0)));
        trek_var *worth = trek_var_from(trek_tensor_from_data(advantages, trek_dims(steps, 1), TREK_F32, trek_cpu(0)));
        trek_var *chances = trek_gather(trek_log_softmax(trek_forward(policy, x), 1), 1, done);
        loss = trek_neg(trek_mean(trek_mul(chances, worth), trek_dims_all(), false));
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
    int steps = play(policy, episodes, (int)n, (uint32_t)o->common.seed + (uint32_t)(number * o->episodes + first));
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
    trek_comm_all_reduce_scalar(comm, &all, TREK_REDUCTION_SUM);
    return all / o->episodes; /* the return that counts: steps survived */
}

/* --- a rank --------------------------------------------------------------------------------- */

/* The number of updates that were made before, which all ranks must find. */
static int go_on(const char *path, trek_comm *comm, trek_module *policy, trek_optimizer *optimizer, double *mean)
{
    int updates = file_is_there(path) ? kept_read(path, policy, optimizer, mean) : 0;
    double most = updates;
    if (trek_comm_all_reduce_scalar(comm, &most, TREK_REDUCTION_MAX) == TREK_OK && most != updates)
        trek_fail(TREK_ERR_STATE, "%s: rank %d has %d updates, another rank %.0f", path ? path : "--checkpoint",
                  trek_comm_rank(comm),
                  updates, most);
    return updates;
}

/* Whether nobody asked for an end: all ranks stop after the same update. */
static bool goes_on(trek_comm *comm)
{
    double asked = trek_stop_requested();
    return trek_comm_all_reduce_scalar(comm, &asked, TREK_REDUCTION_SUM) == TREK_OK && asked == 0;
}

/* What every rank runs, as a thread or as a process. */
static trek_status train(job *j, trek_comm *comm)
{
    const options *o = &j->o;
    trek_device device = trek_cpu(0);
    trek_ddp *ddp = trek_ddp_wrap_process(trek_nn_sequential((trek_module *[]){
        trek_nn_linear(CART_STATE, WIDTH, device), trek_nn_tanh(), trek_nn_linear(WIDTH, CART_ACTIONS, device) }, 3), comm, NULL);
    trek_params *params = trek_module_params(trek_ddp_module(ddp));
    trek_optimizer *optimizer = trek_optimizer_new(trek_adam(&(trek_adam_opts){ .lr = o->common.lr }), params);
    episode *episodes = calloc(MAX_EPISODES, sizeof *episodes);
    bool first = trek_comm_rank(comm) == 0;
    trek_progress *progress = first && !o->common.quiet ? trek_progress_new_with(&(trek_progress_opts){
        .epochs = o->updates / EVERY, .batches = EVERY, .unit = "round" }) : NULL;
    double recent = 0, last = 0;
    trek_module *policy = trek_ddp_replica_module(ddp, 0);
    int k = go_on(o->common.checkpoint, comm, policy, optimizer, &last);
    for (; k < o->updates && episodes && trek_error_status() == TREK_OK && goes_on(comm); k++) {
        recent += update(ddp, optimizer, comm, o, episodes, k);
        trek_progress_update(progress, k / EVERY, k % EVERY + 1, NAN);
        if ((k + 1) % EVERY != 0)
            continue;
        last = recent / EVERY;
        recent = 0;
        trek_progress_epoch(progress, k / EVERY, "mean return", last);
        if (first && o->common.checkpoint)
            kept_write(o->common.checkpoint, policy, optimizer, k + 1, last);
    }
    trek_progress_free(&progress);
    if (first) {
        j->last_return = last;
        if (o->common.save && trek_error_status() == TREK_OK)
            trek_state_save(policy, o->common.save);
    }
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

static void parse(options *o, int argc, char **argv)
{
    const argument own[] = {
        { "--updates", "N", "number of updates of the policy", .whole = &o->updates, .least = EVERY },
        { "--ranks", "N", "number of rank threads of this process, if no launcher started it", .whole = &o->common.ranks,
          .least = 1,
          .most = 1024 },
        { "--episodes", "N", "number of games that all ranks together play before each update", .whole = &o->episodes, .least = 1,
          .most = MAX_EPISODES },
        { "--expect", "RETURN", "fails if the mean return of the last ten updates is lower", .number = &o->expect,
          .least = 0 },
    };
    training_read(argc, argv, "Trains a policy that balances a pole on a cart (REINFORCE).", &o->common, own, 4);
}

int main(int argc, char **argv)
{
    job j = { .o = { .common = { .lr = 1e-2, .ranks = 2, .seed = 1, .without = "--epochs --batch-size --ranks --data" },
                     .updates = 100, .episodes = 16 } };
    parse(&j.o, argc, argv);
    training_stop_by_signals();
    trek_seed(j.o.common.seed);
    bool first = true;
    if (trek_comm_world_described(NULL) > 1) {
        trek_comm *comm = trek_comm_init(NULL);
        if (comm)
            train(&j, comm);
        first = trek_comm_rank(comm) == 0;
        trek_comm_free(&comm);
    } else if ((j.ranks = trek_ranks_new(NULL, j.o.common.ranks))) {
        trek_ranks_run(j.ranks, rank_thread, &j);
        trek_ranks_free(&j.ranks);
    }
    if (trek_error_status() == TREK_OK && first) {
        printf("mean return %.1f of %d\n", j.last_return, LIMIT);
        if (j.last_return < j.o.expect)
            trek_fail(TREK_ERR_STATE, "that is less than %.1f", j.o.expect);
    }
    return training_end();
}
