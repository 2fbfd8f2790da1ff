/* SPDX-License-Identifier: Apache-2.0 */
/* A program's own loop over trek_ddp, on real processes that kill themselves: before and after every call in which they meet, in
 * spans, several of them, with two wrappers in turn. The others see no error and the same group in the same step, end with the
 * same bits, and have what one process computes from the parts of those that were there. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/ddp.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "optim/optimizers.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/devices.h"
#include "tests/distributed/grains/dying.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { IN = 5, HIDDEN = 7, ROWS = 23, STEPS = 9, WRAPPERS = 2, LATER = 4, REFRESHED = 5 };

/* --- what is trained ---------------------------------------------------------------------------------------------- */

/* Batch norm is over a rank's own rows, so the ranks' parts show in the gradients; its running statistics are buffers. */
static trek_module *build(int which, trek_device device)
{
    trek_seed(7 + (uint64_t)which);
    trek_module *layers[] = {
        trek_nn_linear_with(&(trek_linear_opts){ .in = IN, .out = HIDDEN, .no_bias = true, .device = device, .dtype = TREK_F64 }),
            /* its gradient would be noise */
        trek_nn_batch_norm1d_with(&(trek_batch_norm_opts){ .features = HIDDEN, .device = device, .dtype = TREK_F64 }),
        trek_nn_linear_with(&(trek_linear_opts){ .in = HIDDEN, .out = 1, .device = device, .dtype = TREK_F64 }),
    };
    return trek_nn_sequential(layers, sizeof layers / sizeof *layers);
}

static trek_optimizer_spec spec_of(int which)
{
    return which ? trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 }) : trek_adam(&(trek_adam_opts){ .lr = 0.02 });
}

/* The rows of a step that a rank of so many has. */
static void part_of(int rank, int world, int *first, int *rows)
{
    *first = ROWS * rank / world;
    *rows = ROWS * (rank + 1) / world - *first;
}

static trek_var *values_of(int stream, int first, int rows, int width, trek_device device)
{
    double list[ROWS * IN];
    for (int i = 0; i < rows * width; i++)
        list[i] = test_number((uint32_t)stream, (uint32_t)(first * width + i));
    return trek_var_from(trek_tensor_from_data(list, trek_dims(rows, width), TREK_F64, device));
}

static trek_var *loss_of(trek_module *model, int which, int step, int first, int rows, trek_device device)
{
    int stream = 2 * (WRAPPERS * step + which);
    trek_var *output = trek_forward(model, values_of(stream, first, rows, IN, device));
    return trek_mean(trek_square(trek_sub(output, values_of(stream + 1, first, rows, 1, device))), trek_dims_all(), false);
}

static trek_status add_up(const char *name, trek_var *var, void *arg)
{
    double *number = arg, *values = test_read(trek_var_data(var));
    for (int64_t i = 0; i < trek_var_numel(var); i++)
        *number = *number * 1.0009765625 + values[i];
    free(values);
    return TREK_OK;
}

/* --- a process ------------------------------------------------------------------------------------------------------ */

typedef struct trained {
    trek_module *model;
    trek_ddp *ddp;
    trek_optimizer *optimizer;
    trek_device device;
} trained;

/* Gradients are reduced in three ways in turn. The last one's mean is over ranks, whatever their rows. */
static trek_status reduce(const trained *t, trek_var *loss, int step, double rows)
{
    if (step % 3 == 0)
        return trek_ddp_backward_weighted(t->ddp, loss, rows);
    trek_status status = trek_backward(loss);
    if (status != TREK_OK)
        return status;
    return step % 3 == 1 ? trek_ddp_reduce_gradients_weighted(t->ddp, &rows) : trek_ddp_reduce_gradients(t->ddp);
}

/* The running mean of each rank is its number, counted from 1, and so is its weight. */
static trek_status merge(const trained *t, int step)
{
    trek_var *mean = trek_module_find(t->model, "1.running_mean");
    int rank = trek_ddp_rank(t->ddp), world = trek_ddp_world_size(t->ddp);
    double number = rank + 1;
    trek_tensor *own = trek_tensor_full(trek_var_shape(mean), number, TREK_F64, t->device);
    trek_status status = trek_tensor_copy_from(trek_var_data(mean), own);
    trek_tensor_release(own);
    if (status == TREK_OK)
        status = trek_ddp_sync_buffers(t->ddp, &number);
    double *values = test_read(trek_var_data(mean));
    printf("merged %d rank %d world %d %.17g.\n", step, rank, world, values[HIDDEN - 1]);
    free(values);
    return status;
}

/* Each rank has counted as many samples as its number says. */
static trek_status count(const trained *t, int step, trek_comm *comm)
{
    int rank = trek_ddp_rank(t->ddp), world = trek_ddp_world_size(t->ddp);
    trek_metric *own = trek_metric_new(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_MSE });
    trek_scope scope = trek_scope_begin();
    trek_var *numbers = values_of(0, 0, rank + 1, 1, trek_cpu(0));
    trek_status status = trek_metric_update(own, numbers, numbers);
    trek_scope_end(scope);
    trek_metric *all = status == TREK_OK ? trek_metric_join(step % 2 ? comm : trek_ddp_comm(t->ddp), own) : NULL;
    if (all)
        printf("counted %d rank %d world %d %d.\n", step, rank, world, (int)trek_metric_count(all));
    trek_metric_free(&all);
    trek_metric_free(&own);
    return trek_error_status();
}

static trek_status train(const trained *t, int which, int step, bool from)
{
    int first, rows;
    part_of(trek_ddp_rank(t->ddp), trek_ddp_world_size(t->ddp), &first, &rows);
    trek_scope scope = trek_scope_begin();
    trek_status status = reduce(t, loss_of(t->model, which, step, first, rows, t->device), step, rows);
    trek_scope_end(scope);
    if (status == TREK_OK)
        status = trek_optimizer_step(t->optimizer);
    if (status == TREK_OK)
        status = trek_optimizer_zero_grad(t->optimizer);
    if (status == TREK_OK)
        status = from ? trek_ddp_sync_params_from(t->ddp, trek_ddp_world_size(t->ddp) - 1)
            : trek_ddp_sync_params(t->ddp);
    return status;
}

static void begin(trained *t, int which, trek_comm *comm, const part *me)
{
    int gpus = trek_device_count(TREK_CUDA);
    bool mixed = strstr(me->detail, "mixed") && me->process % 2;
    t->device = gpus > 0 && !mixed ? trek_cuda(me->process % gpus) : trek_cpu(0);
    t->model = build(which, t->device);
    t->ddp = trek_ddp_wrap_process(t->model, comm, &(trek_ddp_opts){ .min_processes = dying_number(me->detail, "least=", 1),
                                                                      .bucket_bytes = 128 });
}

/* place: how many times training has begun, in all wrappers together. */
static void say_place(const trained *t, int place)
{
    trek_device devices[PROCESSES];
    int rank = trek_ddp_rank(t->ddp), world = trek_ddp_devices(t->ddp, devices, PROCESSES);
    if (world != trek_ddp_world_size(t->ddp) || !trek_device_equal(devices[rank], t->device))
        printf("devices are wrong\n");
    printf("place %d rank %d world %d.\n", place, rank, world);
    fflush(stdout);
}

static int play(const part *me)
{
    trained all[WRAPPERS] = { 0 };
    bool later = strstr(me->detail, "later"); /* the second wrapper is made when processes have died */
    int all_wrappers = later || strstr(me->detail, "pair") ? WRAPPERS : 1, n = later ? 1 : all_wrappers;
    trek_comm *comm = dying_join(me, me->processes);
    for (int k = 0; k < n && comm && trek_error_status() == TREK_OK; k++)
        begin(&all[k], k, comm, me);
    dying_begin(me, trek_error_status() == TREK_OK ? comm : NULL);
    dying_count_calls();
    for (int k = 0; k < n && trek_error_status() == TREK_OK; k++)
        all[k].optimizer = trek_ddp_optimizer(all[k].ddp, spec_of(k));
    trek_status status = trek_error_status();
    for (int step = 0; step < STEPS && status == TREK_OK; step++) {
        for (; step == LATER && n < all_wrappers && status == TREK_OK; n++) {
            begin(&all[n], n, comm, me);
            all[n].optimizer = trek_ddp_optimizer(all[n].ddp, spec_of(n));
            status = trek_error_status();
        }
        for (int k = 0; k < n && status == TREK_OK; k++) {
            say_place(&all[k], all_wrappers * step + k);
            status = train(&all[k], k, step, strstr(me->detail, "from"));
        }
        if (status == TREK_OK && step % 4 == 2)
            status = merge(&all[0], step);
        if (status == TREK_OK && step % 3 == 1)
            status = count(&all[0], step, comm);
        if (status == TREK_OK && step == REFRESHED)
            status = trek_ddp_refresh(all[0].ddp);
    }
    for (int k = 0; k < n && status == TREK_OK; k++) {
        double params = 0;
        trek_module_each_param(all[k].model, add_up, &params);
        say_place(&all[0], all_wrappers * STEPS);
        printf("final %d %.17g calls %d.\n", k, params, dying_calls());
    }
    if (status != TREK_OK)
        printf("%s: %s\n", trek_status_name(status), trek_error());
    dying_end();
    trek_error_clear();
    for (int k = 0; k < n; k++) {
        trek_optimizer_free(&all[k].optimizer);
        trek_ddp_free(&all[k].ddp);
    }
    trek_comm_free(&comm);
    return status == TREK_OK ? 0 : 1;
}

/* --- what is expected ------------------------------------------------------------------------------------------------- */

/* What the survivors saw in each place: how many ranks, and which of them are survivors. The others died in it or later. */
typedef struct seen {
    int wrappers, world[WRAPPERS * STEPS + 1];
    bool lives[WRAPPERS * STEPS + 1][PROCESSES];
    int merge_world[STEPS], count_world[STEPS], counted[STEPS];
    bool merges[STEPS][PROCESSES], counts[STEPS][PROCESSES];
    double merged[STEPS], finals[WRAPPERS];
} seen;

static void read_counts(const world *w, int p, seen *all, bool first)
{
    for (const char *at = w->text[p]; (at = strstr(at, "counted ")); at++) {
        int step, rank, ranks, got;
        WANT(w, sscanf(at, "counted %d rank %d world %d %d", &step, &rank, &ranks, &got) == 4);
        WANT(w, first || (all->count_world[step] == ranks && all->counted[step] == got));
        all->count_world[step] = ranks;
        all->counted[step] = got;
        all->counts[step][rank] = true;
    }
}

static bool is_counted(const seen *all)
{
    bool good = true;
    for (int step = 1; step < STEPS; step += 3) {
        int sum[2] = { 0 };
        for (int r = 0; r < all->count_world[step]; r++)
            for (int with = !all->counts[step][r]; with < 2; with++)
                sum[with] += r + 1;
        good = good && (all->counted[step] == sum[0] || all->counted[step] == sum[1]);
    }
    return good;
}

static void read_merges(const world *w, int p, seen *all, bool first)
{
    for (const char *at = w->text[p]; (at = strstr(at, "merged ")); at++) {
        int step, rank, ranks;
        double got;
        WANT(w, sscanf(at, "merged %d rank %d world %d %lf", &step, &rank, &ranks, &got) == 4);
        WANT(w, first || (all->merge_world[step] == ranks && all->merged[step] == got));
        all->merge_world[step] = ranks;
        all->merged[step] = got;
        all->merges[step][rank] = true;
    }
}

/* With those that died in it, or without them. */
static bool is_merged(const seen *all)
{
    bool good = true;
    for (int step = 2; step < STEPS; step += 4) {
        double sum[2] = { 0 }, weights[2] = { 0 };
        for (int r = 0; r < all->merge_world[step]; r++)
            for (int with = !all->merges[step][r]; with < 2; with++) {
                sum[with] += (r + 1) * (r + 1);
                weights[with] += r + 1;
            }
        good = good && (fabs(all->merged[step] - sum[0] / weights[0]) < 1e-12 ||
                        fabs(all->merged[step] - sum[1] / weights[1]) < 1e-12);
    }
    return good;
}

static void read_process(const world *w, int p, seen *all, bool *first)
{
    for (const char *at = w->text[p]; (at = strstr(at, "place ")); at++) {
        int place, rank, ranks;
        if (sscanf(at, "place %d rank %d world %d.", &place, &rank, &ranks) != 3)
            continue;
        WANT(w, *first || all->world[place] == ranks);
        all->world[place] = ranks;
        all->lives[place][rank] = true;
    }
    for (const char *at = w->text[p]; (at = strstr(at, "final ")); at++) {
        int which;
        double got;
        WANT(w, sscanf(at, "final %d %lf", &which, &got) == 2);
        WANT(w, *first || got == all->finals[which]);
        all->finals[which] = got;
    }
    read_merges(w, p, all, *first);
    read_counts(w, p, all, *first);
    *first = false;
}

static int next_world(const seen *all, int place)
{
    while (all->world[++place] == 0)
        continue;
    return all->world[place];
}

/* Trains on the parts of the ranks; bit k of `missing` leaves out the k-th that has died in the last place in which it was seen.
 */
static double train_alone(const seen *all, int which, unsigned missing, int *choices)
{
    trek_module *model = build(which, test_device());
    trek_params *params = trek_module_params(model);
    trek_optimizer *optimizer = trek_optimizer_new(spec_of(which), params);
    *choices = 0;
    for (int step = 0; step < STEPS; step++) {
        double total = 0;
        bool takes[PROCESSES];
        int first, rows, place = all->wrappers * step + which, world = all->world[place];
        if (world == 0) /* the wrapper is made later */
            continue;
        for (int r = 0; r < world; r++) {
            bool unsure = !all->lives[place][r] && next_world(all, place) < world;
            takes[r] = !(unsure && missing >> (*choices)++ & 1);
            part_of(r, world, &first, &rows);
            total += takes[r] ? step % 3 == 2 ? 1 : rows : 0;
        }
        for (int r = 0; r < world; r++) {
            trek_scope scope = trek_scope_begin();
            part_of(r, world, &first, &rows);
            if (takes[r])
                trek_backward(trek_mul_scalar(loss_of(model, which, step, first, rows, test_device()),
                                              (step % 3 == 2 ? 1 : rows) / total));
            trek_scope_end(scope);
        }
        assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
        assert_int_equal(trek_optimizer_zero_grad(optimizer), TREK_OK);
    }
    double number = 0;
    trek_module_each_param(model, add_up, &number);
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_module_free(&model);
    return number;
}

static int counted[2]; /* how often the part of one that died counted in its last step, and how often not */

static bool is_trained(const seen *all, int which)
{
    int choices;
    double number = train_alone(all, which, 0, &choices), wanted = all->finals[which];
    for (unsigned missing = 0;; missing++) {
        if (fabs(number - wanted) < 1e-9 * (1 + fabs(wanted))) {
            counted[missing != 0] += choices > 0;
            return true;
        }
        if (missing + 1 >= 1u << choices)
            return false;
        number = train_alone(all, which, missing + 1, &choices);
    }
}

static bool dies(const char *words) { return words && strncmp(words, "late=", 5) != 0; }

/* Runs n processes, each with words of its own, or NULL; most of them say when it dies. Returns how many calls process 0 has made
 * in the first group. */
static int expect(const char *detail, int n, const char *const *deaths, int left)
{
    static world w;
    static seen all;
    bool first = true;
    memset(&all, 0, sizeof all);
    dying_play(&w, detail, dying_roles(n, deaths));
    for (int p = 0; p < n; p++) {
        bool ended = dies(deaths[p]) ? w.code[p] == -9 : w.code[p] == 0 && strstr(w.text[p], "final ");
        if (!ended)
            FAIL_WORLD(&w, "%s: process %d (%s) ended with %d", detail, p, deaths[p] ? deaths[p] : "-", w.code[p]);
        WANT(&w, !strstr(w.text[p], "wrong"));
        if (!dies(deaths[p]))
            read_process(&w, p, &all, &first);
    }
    all.wrappers = strstr(detail, "pair") || strstr(detail, "later") ? WRAPPERS : 1;
    WANT(&w, all.world[all.wrappers * STEPS] == left);
    if (!is_merged(&all))
        FAIL_WORLD(&w, "%s: buffers are not those of the ranks", detail);
    if (!is_counted(&all))
        FAIL_WORLD(&w, "%s: metrics are not those of the ranks", detail);
    for (int which = 0; which < all.wrappers; which++)
        if (!is_trained(&all, which))
            FAIL_WORLD(&w, "%s: wrapper %d has not what its parts give", detail, which);
    const char *calls = strstr(w.text[0], "calls ");
    return calls ? atoi(calls + 6) : 0;
}

/* --- tests ------------------------------------------------------------------------------------------------------------ */

static int lost_roots;

static void dies_before_or_after_any_call(const char *detail, int every)
{
    const char *nobody[3] = { 0 };
    int made = expect(detail, 3, nobody, 3);
    assert_true(made > 40);
    for (int k = 0, turn = 0; k < made - 4; k++)
        for (int after = 0; after < 2; after++, turn++) {
            char when[32];
            const char *deaths[3] = { 0 };
            snprintf(when, sizeof when, "%s=%d", after ? "after" : "before", k);
            deaths[(k + after) % 3] = when;
            if (turn % every == 0)
                expect(detail, 3, deaths, 2);
        }
}

static void one_dies_before_or_after_any_call(void **state)
{
    dies_before_or_after_any_call("one", test_short() ? 9 : test_long() ? 1 : 3);
    assert_true(counted[0] > 0 && counted[1] > 0);
}

/* One that does not see that the commit has succeeded continues beside another one, which is in its next call already; in other
 * calls both begin again. */
static void one_is_late(void **state)
{
    int every = test_short() ? 7 : test_long() ? 1 : 3;
    for (int k = 0; k < 60; k += every) {
        char when[2][24];
        snprintf(when[0], sizeof when[0], "after=%d", k);
        snprintf(when[1], sizeof when[1], "late=%d", k);
        const char *words[3] = { 0 };
        words[k % 3] = when[0];
        words[(k + 1) % 3] = when[1];
        expect(k % 2 ? "pair" : "one", 3, words, 2);
    }
}

/* One that has completed the last call has left; one that is late completes it, too, although too few are left then. */
static void the_last_call_is_completed(void **state)
{
    static world w;
    char when[2][24];
    const char *nobody[3] = { 0 };
    int last = expect("one,least=2", 3, nobody, 3) - 1;
    double got[2] = { NAN, NAN };
    snprintf(when[0], sizeof when[0], "after=%d", last);
    snprintf(when[1], sizeof when[1], "late=%d", last);
    dying_play(&w, "one,least=2", (const role[]){ LIVES(when[1]), DIES(when[0]), LIVES("-"), { 0 } });
    for (int p = 0; p < 3; p += 2) {
        const char *final = strstr(w.text[p], "final 0 ");
        WANT(&w, w.code[p] == 0 && final && sscanf(final, "final 0 %lf", &got[p / 2]) == 1);
    }
    WANT(&w, got[0] == got[1]);
}

static void two_wrappers_take_turns(void **state)
{
    dies_before_or_after_any_call("pair", test_short() ? 25 : test_long() ? 1 : 11);
}

/* Its values are lost if it dies in that call. */
static void the_root_may_be_another_one(void **state)
{
    expect("one,from", 3, (const char *[]){ NULL, NULL, NULL }, 3);
    expect("one,from", 3, (const char *[]){ "before=27", NULL, NULL }, 2);
    expect("pair,from", 3, (const char *[]){ NULL, "after=40", NULL }, 2);
    const char *words = "TREK_ERR_PEER: ddp_sync_params_from: root: rank 2, which has died";
    for (int k = 0; k < 8; k++) {
        static world w;
        char when[16];
        snprintf(when, sizeof when, "before=%d", 16 + k);
        dying_play(&w, "one,from", (const role[]){ LIVES("-"), LIVES("-"), DIES(when), { 0 } });
        bool said = strstr(w.text[0], words) != NULL;
        WANT(&w, said == (strstr(w.text[1], words) != NULL));
        WANT(&w, said || (strstr(w.text[0], "final ") && strstr(w.text[1], "final ")));
        lost_roots += said;
    }
    assert_true(lost_roots > 0 && lost_roots < 8);
}

static void several_die(void **state)
{
    static const struct {
        const char *detail, *deaths[4];
        int left;
    } cases[] = {
        { "one", { "before=9", NULL, "before=9", NULL }, 2 },      { "pair", { NULL, "after=14", NULL, "at=regroup:0" }, 2 },
        { "one", { NULL, "at=bucket:9", "at=regroup:0", NULL }, 2 }, { "pair", { "at=reduce:3", "at=reduce:7", NULL, NULL }, 2 },
        { "one", { "at=reduce:2", "at=reduce:4", "at=reduce:6", NULL }, 1 },
        { "later", { "at=reduce:2", NULL, NULL, "at=reduce:9" }, 2 },
        { "later", { "at=reduce:0", "at=reduce:1", NULL, "at=reduce:2" }, 1 },
    };
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++)
        expect(cases[k].detail, 4, cases[k].deaths, cases[k].left);
}

static void over_gloo_too(void **state)
{
    char why[256];
    if (!trek_comm_gloo_there(why, sizeof why))
        skip();
    expect("pair,gloo", 3, (const char *[]){ NULL, "before=23", NULL }, 2);
    expect("one,gloo", 3, (const char *[]){ "at=reduce:4", NULL, NULL }, 2);
}

/* Every second process is on a CPU, beside GPUs. */
static void on_cpus_and_gpus(void **state)
{
    if (test_on_cpu())
        skip();
    expect("one,mixed", 3, (const char *[]){ NULL, NULL, NULL }, 3);
    expect("one,mixed", 3, (const char *[]){ NULL, "before=20", NULL }, 2);
    expect("pair,mixed", 3, (const char *[]){ "at=reduce:4", NULL, NULL }, 2);
    expect("one,mixed", 4, (const char *[]){ NULL, "after=31", NULL, "at=regroup:0" }, 2);
}

static void too_few_are_left(void **state)
{
    const role roles[] = { REPORTS("-", "TREK_ERR_PEER: *process 1*.min_processes is 3"), DIES("before=20"),
                           REPORTS("-", "TREK_ERR_PEER: *process 1*.min_processes is 3"), { 0 } };
    dying_expect("one,least=3", roles, 0, -1);
    const role many[] = { REPORTS("-", "ddp_wrap_process: .min_processes: 3; must be 0 to 2, the number of processes"),
                          REPORTS("-", ".min_processes: 3; must be 0 to 2"), { 0 } };
    dying_expect("one,least=3", many, 0, -1);
}

/* --- what is refused -------------------------------------------------------------------------------------------------- */

static void refuse(trek_module *model, trek_comm *comm, const trek_ddp_opts *opts, trek_status status, const char *words)
{
    assert_null(trek_ddp_wrap_process(model, comm, opts));
    expect_error(status, words);
}

static trek_status refuse_on_rank(int rank, void *arg)
{
    (void)rank;
    assert_null(trek_ddp_wrap_process(build(0, trek_cpu(0)), trek_ranks_comm(arg, rank), &(trek_ddp_opts){ .min_processes = 1 }));
    assert_non_null(strstr(trek_error(), rank == 0 ? "with a communicator of threads, which end together" : ".min_processes"));
    trek_error_clear();
    return TREK_OK;
}

static void what_it_cannot_do_is_refused(void **state)
{
    trek_device cpus[2] = { trek_cpu(0), trek_cpu(0) };
    refuse(build(0, trek_cpu(0)), NULL, &(trek_ddp_opts){ .min_processes = -1 }, TREK_ERR_ARGUMENT,
           "ddp_wrap: .min_processes: -1; must be 0 or more");
    refuse(build(0, trek_cpu(0)), NULL, &(trek_ddp_opts){ .min_processes = 1, .shard = TREK_SHARD_STATE }, TREK_ERR_UNSUPPORTED,
           "ddp_wrap_process: .min_processes: set together with .shard");
    refuse(build(0, trek_cpu(0)), NULL, &(trek_ddp_opts){ .min_processes = 1, .overlap = 1 }, TREK_ERR_UNSUPPORTED,
           "ddp_wrap_process: .min_processes: set together with .overlap");
    trek_module *meets = trek_nn_sync_batch_norm(IN, trek_cpu(0));
    refuse(meets, NULL, &(trek_ddp_opts){ .min_processes = 1 }, TREK_ERR_UNSUPPORTED, "with layers that meet other ranks");
    assert_null(trek_ddp_wrap((trek_module *[]){ build(0, trek_cpu(0)) }, 1, &(trek_ddp_opts){ .min_processes = 1 }));
    expect_error(TREK_ERR_ARGUMENT, "ddp_wrap: .min_processes: 1; must be 0, since all replicas are in one process");
    trek_ranks *ranks = trek_ranks_new(cpus, 2);
    assert_int_equal(trek_ranks_run(ranks, refuse_on_rank, ranks), TREK_OK);
    trek_ranks_free(&ranks);
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_dies_before_or_after_any_call), cmocka_unit_test(one_is_late),
        cmocka_unit_test(the_last_call_is_completed),
        cmocka_unit_test(two_wrappers_take_turns),
        cmocka_unit_test(the_root_may_be_another_one), cmocka_unit_test(several_die), cmocka_unit_test(over_gloo_too),
        cmocka_unit_test(on_cpus_and_gpus),
        cmocka_unit_test(too_few_are_left), cmocka_unit_test(what_it_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
