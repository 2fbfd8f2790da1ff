/* SPDX-License-Identifier: Apache-2.0 */
/* Training in grains on several real processes, started by trek-run or mpirun: every process has the bits of one process
 * with one rank, over every engine, with any numbers of ranks and threads. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/comm/gloo/gloo.h"
#include "tests/distributed/grains/grain_runs.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static grain_result result;

enum { SHARED, GLOO, MPI }; /* engines */

typedef struct job {
    grain_run run;
    int processes, engine, uneven;
    int shares;              /* 1: of unequal ranks */
    int apart;               /* 1: as on machines of their own, which see no shared memory of each other */
} job;

#define FORMAT "%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d"
enum { FIELDS = 24 };

static void write_job(const job *j, char *text, size_t size)
{
    const grain_run *r = &j->run;
    snprintf(text, size, FORMAT, j->processes, j->engine, j->uneven, j->shares, r->model, r->grain, r->ranks, r->separate,
             (int)r->autocast, r->scaled, r->clipped, r->overflow, r->accumulate, r->optimizer, r->batch, r->steps, r->sharded,
             r->again, r->holds, r->slow, j->apart, r->piece, r->divided, r->captured);
}

static bool read_job(const char *text, job *j)
{
    grain_run *r = &j->run;
    int separate, autocast, scaled, clipped, sharded, slow, captured;
    bool good = sscanf(text, FORMAT, &j->processes, &j->engine, &j->uneven, &j->shares, &r->model, &r->grain, &r->ranks,
                       &separate, &autocast, &scaled, &clipped, &r->overflow, &r->accumulate, &r->optimizer, &r->batch,
                       &r->steps, &sharded, &r->again, &r->holds, &slow, &j->apart, &r->piece, &r->divided, &captured) == FIELDS;
    r->separate = separate;
    r->autocast = (trek_dtype)autocast;
    r->scaled = scaled;
    r->clipped = clipped;
    r->sharded = sharded;
    r->slow = slow;
    r->captured = r->silent = r->whole = captured;
    return good;
}

/* Returns whether all processes have the same digest. */
static bool together(trek_comm *comm)
{
    uint64_t all[64];
    if (trek_comm_gather_bytes(comm, &result.digest, sizeof result.digest, all) != TREK_OK)
        return false;
    for (int p = 1; p < trek_comm_world_size(comm); p++)
        if (all[p] != all[0])
            return fprintf(stderr, "process %d has another digest\n", p), false;
    return true;
}

/* Gives the process another /dev/shm, by which trek knows machines. Returns whether that is allowed here. */
static bool go_apart(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") == 0;
}

static bool may_go_apart(void)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(!go_apart());
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* A process of the job. All compare their digests with that of the reference. */
static int child(const char *text, const char *expected)
{
    static const char *const names[] = { "shared", "gloo", "mpi" };
    double shares[64];
    job j = { 0 };
    if (!read_job(text, &j))
        return 2;
    alarm(120);
    if (j.apart && !go_apart())
        return 8;
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .engine = names[j.engine] });
    if (!comm || trek_comm_world_size(comm) != j.processes)
        return fprintf(stderr, "%s\n", trek_error()), 3;
    grain_run run = j.run;
    run.comm = comm;
    run.ranks += j.uneven && trek_comm_rank(comm) == 0; /* processes may have different numbers of ranks */
    if (j.shares) {
        run.n_shares = j.run.ranks * j.processes + (j.uneven != 0);
        run.shares = shares;
        for (int r = 0; r < run.n_shares; r++)
            shares[r] = 1 + r % 3 * 1.7;
    }
    if (!grain_train(&run, &result))
        return fprintf(stderr, "%s\n", trek_error()), 4;
    int rank = trek_comm_rank(comm);
    bool same = run.grain != TREK_GRAIN || together(comm); /* all have chosen the same; another time it may be another */
    trek_comm_free(&comm);
    if (run.grain == TREK_GRAIN)
        return same ? 0 : 7;
    int64_t grains = (run.batch + run.grain - 1) / run.grain;
    int64_t kept = j.apart ? 3 : 1; /* from process 0 it has got the next ones by then */
    if (run.holds && (rank == run.holds - 1 ? result.most_grains > kept : j.processes == 2 &&
                      result.most_grains < grains - kept)) {
        fprintf(stderr, "process %d ran %d of %d grains\n", rank, (int)result.most_grains, (int)grains);
        return 6;
    }
    if (run.captured && result.problem[0])
        return fprintf(stderr, "process %d: grains are not recorded: %s\n", rank, result.problem), 9;
    if (result.digest == strtoull(expected, NULL, 16))
        return 0;
    fprintf(stderr, "process %d: digest %016" PRIx64 ", not %s\n", rank, result.digest, expected);
    return 5;
}

static int launch(const job *j, uint64_t digest, int threads)
{
    char text[256], expected[32], number[16];
    write_job(j, text, sizeof text);
    snprintf(expected, sizeof expected, "%016" PRIx64, digest);
    snprintf(number, sizeof number, "%d", threads);
    return processes_launch(j->processes, j->engine == MPI,
                            (const char *[]){ "TREK_TEST_CHILD", text, "TREK_TEST_EXPECTED", expected, "TREK_THREADS", number,
                                              NULL });
}

static void expect_same(const job *j, int threads)
{
    grain_run first = j->run;
    first.ranks = 1;
    first.separate = false;
    first.again = first.holds = 0;
    first.slow = first.captured = false;
    if (!grain_train(&first, &result))
        fail_msg("%s: %s", grain_models[first.model], trek_error());
    int code = launch(j, result.digest, threads);
    if (code != 0)
        fail_msg("%s, %d processes with %d ranks and %d threads, engine %d, uneven %d, separate %d, grain %d: status %d",
                 grain_models[j->run.model], j->processes, j->run.ranks, threads, j->engine, j->uneven, j->run.separate,
                 j->run.grain, code);
}

static void each_model_has_the_bits_of_one_process(void **state)
{
    for (int model = 0; model < MODELS; model++)
        for (int processes = 2; processes <= 4; processes++)
            if (grain_takes(model / 2 + processes))
                expect_same(&(job){ .processes = processes, .uneven = processes == 2, .shares = model == 1,
                                    .run = { .model = model, .ranks = 1 + (model + processes) % 2, .grain = 3, .batch = 20,
                                             .steps = 5, .separate = model % 2, .optimizer = (model + processes) % 4,
                                             .clipped = processes == 3, .autocast = processes == 4 ? TREK_BF16 : TREK_F32,
                                             .piece = model } },
                            1 + processes % 2);
}

/* Scaled losses of which one overflows, passes that are accumulated, processes without a grain. */
static void options_do_not_change_that(void **state)
{
    expect_same(&(job){ .processes = 3, .run = { .model = MLP, .ranks = 2, .grain = 2, .batch = 20, .steps = 6, .scaled = true,
                                                 .overflow = 3 } }, 2);
    expect_same(&(job){ .processes = 2, .run = { .model = CONV_AND_BATCH_NORM, .ranks = 2, .grain = 3, .batch = 7, .steps = 4,
                                                 .accumulate = 3, .clipped = true } }, 2);
    for (int ranks = 1; ranks <= 2; ranks++) /* those of a process share what it has; GPUs have a part each */
        expect_same(&(job){ .processes = 3, .run = { .model = GPT, .ranks = ranks, .grain = 3, .batch = 20, .steps = 4,
                                                     .sharded = true, .clipped = true } }, 1);
    expect_same(&(job){ .processes = 4, .run = { .model = GPT, .ranks = 1, .grain = 9, .batch = 20, .steps = 4 } }, 1);
    expect_same(&(job){ .processes = 4, .run = { .model = DROPOUT_AND_RECOMPUTATION, .ranks = 1, .grain = 9, .batch = 12,
                                                 .accumulate = 2, .steps = 4, .separate = true } }, 1);
}

/* Grains that processes with GPUs record and replay, without an exchange of their own. */
static void captured_grains_have_the_same_bits(void **state)
{
    if (test_on_cpu())
        skip();
    const int models[] = { CONV_AND_BATCH_NORM, DROPOUT_AND_RECOMPUTATION };
    for (int k = 0; k < 2; k++)
        expect_same(&(job){ .processes = 2 + k, .run = { .model = models[k], .ranks = 1, .grain = 2, .batch = 24, .steps = 8,
                                                         .silent = true, .whole = true, .captured = true, .clipped = true } }, 1);
}

/* One process can run the grains that others were given, with samples that it has not read before. */
static void each_process_can_run_all_grains(void **state)
{
    for (int model = 0; model < MODELS; model++)
        if (grain_takes(model))
            expect_same(&(job){ .processes = 2 + model % 2, .uneven = model == 3,
                                .run = { .model = model, .ranks = 1 + model % 2, .grain = 3, .batch = 20, .steps = 4,
                                         .again = 1 + model % 3 % 2, .separate = model == 1,
                                         .accumulate = model == 2 ? 2 : 0 } }, 1);
}

/* A process that is stuck in its first grain loses its other ones to the others, in each step: nobody waits for longer than a
 * grain takes, and the bits are the same. */
static void others_take_what_a_slow_process_leaves(void **state)
{
    char why[256];
    for (int engine = SHARED; engine <= GLOO; engine++)
        for (int holds = 1; holds <= 3 && (engine == SHARED || trek_comm_gloo_there(why, sizeof why)); holds++)
            if (grain_takes(engine * holds))
                expect_same(&(job){ .processes = holds == 1 ? 2 : 3, .engine = engine, .shares = holds == 3,
                                    .run = { .model = holds == 2 ? CONV_AND_BATCH_NORM : GPT, .ranks = 1, .grain = 2,
                                             .batch = 20, .steps = 4, .holds = holds } }, 1);
}

/* The same for processes of several machines, which process 0 gives grains. */
static void process_0_hands_out_grains(void **state)
{
    char why[256];
    if (!trek_comm_gloo_there(why, sizeof why) || !may_go_apart())
        skip();
    for (int holds = 1; holds <= 3; holds++)
        expect_same(&(job){ .processes = holds == 3 ? 3 : 2, .engine = GLOO, .apart = 1,
                            .run = { .model = holds == 2 ? CONV_AND_BATCH_NORM : GPT, .ranks = 1, .grain = 2, .batch = 20,
                                     .steps = 4, .holds = holds } }, 1);
    for (int model = 0; model < MODELS; model++)
        if (grain_takes(model + 1))
            expect_same(&(job){ .processes = 2 + model % 3, .engine = GLOO, .apart = 1, .uneven = model % 2,
                                .shares = model % 3 == 0,
                                .run = { .model = model, .ranks = 1 + (model == 2), .grain = 3 - model % 2, .batch = 20,
                                         .steps = 4, .slow = true, .accumulate = model == 3 ? 2 : 0,
                                         .separate = model == 4 } }, 1);
}

/* Sums of gradients, and parameters, that are divided among all ranks of all processes, on one machine and on several; sums of
 * squares of what no rank has alone. */
static void divided_sums_have_the_same_bits(void **state)
{
    char why[256];
    bool gloo = trek_comm_gloo_there(why, sizeof why), apart = gloo && may_go_apart();
    for (int k = 0; k < 2 * MODELS; k++) {
        int engine = k % 3 == 1 && gloo ? GLOO : SHARED;
        if (!test_on_cpu() && !grain_takes(k))
            continue;
        expect_same(&(job){ .processes = 2 + k % 3, .engine = engine, .apart = apart && engine == GLOO,
                            .uneven = k % 4 == 1, .shares = k % 5 == 2,
                            .run = { .model = k % MODELS, .ranks = 1 + k / 2 % 2, .grain = 2 + k % 2,
                                     .batch = 20 + k % 2,
                                     .steps = 4,
                                     .separate = true, .sharded = true, .divided = 1 + (k + k / MODELS) % 2, .clipped = k % 3 < 2,
                                     .optimizer = k % 4, .accumulate = k % 4 == 3 ? 2 : 0, .slow = k % 2,
                                     .scaled = k % 6 == 5, .overflow = k % 6 == 5 ? 2 : 0, .again = k % 7 == 3,
                                     .autocast = k % 5 == 4 ? TREK_BF16 : TREK_F32 } }, 1);
    }
    expect_same(&(job){ .processes = 3, .run = { .model = GPT, .ranks = 1, .grain = 2, .batch = 20, .steps = 4, .separate = true,
                                                 .sharded = true, .divided = 2, .holds = 2, .clipped = true } }, 1);
}

static void processes_choose_one_size(void **state)
{
    for (int model = 0; model < MODELS; model += 2)
        assert_int_equal(launch(&(job){ .processes = 2 + model / 2, .run = { .model = model, .ranks = 1, .grain = TREK_GRAIN,
                                                                             .batch = 20, .steps = 3 } }, 0, 1), 0);
}

/* Any of that together, as it is drawn. TREK_TEST_DRAWS says how often. */
static void expect_same_of_drawn(bool mpi, int otherwise)
{
    char why[256];
    const char *draws = getenv("TREK_TEST_DRAWS");
    int n = draws ? atoi(draws) : otherwise;
    bool gloo = !mpi && trek_comm_gloo_there(why, sizeof why), apart = gloo && may_go_apart();
    for (int k = 0; k < n; k++) {
        uint64_t seed = test_seed() * 1000003 + (uint64_t)k + (mpi ? 500500 : 500);
        job j = { .run = grain_draw(&seed, 3), .processes = 2 + (int)test_draw(&seed, 3), .uneven = (int)test_draw(&seed, 2),
                  .engine = mpi ? MPI : gloo && test_draw(&seed, 3) == 0 ? GLOO : SHARED, .shares = (int)test_draw(&seed, 2) };
        j.apart = apart && j.engine == GLOO && test_draw(&seed, 2);
        j.run.evaluates = j.run.freezes = false;
        j.run.separate |= j.run.sharded && j.run.divided > 0 && test_on_cpu();
        j.run.separate &= !j.run.sharded || j.run.divided > 0 || !test_on_cpu(); /* ranks that share parameters share a part */
        expect_same(&j, 1 + (int)test_draw(&seed, 3));
    }
}

static void drawn_jobs_have_the_bits_of_one_process(void **state)
{
    expect_same_of_drawn(false, test_short_on_device() ? 2 : test_short() ? 4 : 12);
}

static void gloo_sums_alike(void **state)
{
    char why[256];
    if (!trek_comm_gloo_there(why, sizeof why))
        skip();
    for (int model = 0; model < MODELS; model += 2)
        if (grain_takes(model + 1))
            expect_same(&(job){ .processes = 2 + model / 2, .engine = GLOO, .uneven = model == 2,
                                .run = { .model = model, .ranks = 1, .grain = 3, .batch = 20, .steps = 4,
                                         .separate = model == 0, .clipped = true, .piece = 3 * model } }, 1);
}

static void mpi_sums_alike(void **state)
{
    for (int model = 1; model < MODELS; model += 2)
        expect_same(&(job){ .processes = 2 + model / 2, .engine = MPI,
                            .run = { .model = model, .ranks = 1 + (model == 1), .grain = 3, .batch = 20, .steps = 4,
                                     .separate = model == 1, .clipped = true } }, 1);
    expect_same(&(job){ .processes = 3, .engine = MPI,
                        .run = { .model = GPT, .ranks = 2, .grain = 3, .batch = 20, .steps = 4, .separate = true, .sharded = true,
                                 .divided = 2, .clipped = true } }, 1);
    expect_same(&(job){ .processes = 2, .engine = MPI,
                        .run = { .model = LSTM, .ranks = 1, .grain = 2, .batch = 20, .steps = 4, .holds = 2 } }, 1);
}

static void drawn_jobs_over_mpi_have_them_too(void **state) { expect_same_of_drawn(true, test_short() ? 1 : 4); }

int main(void)
{
    const char *text = getenv("TREK_TEST_CHILD");
    if (text)
        return child(text, getenv("TREK_TEST_EXPECTED"));
    if (!processes_launcher_there())
        return 77;
    const struct CMUnitTest with_mpi[] = {
        cmocka_unit_test_setup(mpi_sums_alike, clear_error),
        cmocka_unit_test_setup(drawn_jobs_over_mpi_have_them_too, clear_error),
    };
    if (getenv("TREK_TEST_MPI"))
        return cmocka_run_group_tests(with_mpi, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(each_model_has_the_bits_of_one_process, clear_error),
        cmocka_unit_test_setup(options_do_not_change_that, clear_error),
        cmocka_unit_test_setup(captured_grains_have_the_same_bits, clear_error),
        cmocka_unit_test_setup(each_process_can_run_all_grains, clear_error),
        cmocka_unit_test_setup(others_take_what_a_slow_process_leaves, clear_error),
        cmocka_unit_test_setup(process_0_hands_out_grains, clear_error),
        cmocka_unit_test_setup(divided_sums_have_the_same_bits, clear_error),
        cmocka_unit_test_setup(processes_choose_one_size, clear_error),
        cmocka_unit_test_setup(drawn_jobs_have_the_bits_of_one_process, clear_error),
        cmocka_unit_test_setup(gloo_sums_alike, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
