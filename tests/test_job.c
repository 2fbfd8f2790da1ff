/* SPDX-License-Identifier: Apache-2.0 */
/* The same training on several processes, started by trek-run, against one
 * process on one device: batches divided among processes and then ranks, passes
 * per rank, windows, forwards that are split, losses that weigh differently, and
 * batches of which some processes get nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/support.h"
#include "tests/support/training.h"

static const char *self, *launcher;
static result many, one;

/* What a process is told on its command line. */
typedef struct job {
    int processes, world, passes, batch, loss, separate, windows, gathered, clip, adam, uneven;
} job;

static run run_of(const job *j)
{
    return (run){ .world = j->world, .passes = j->passes, .batch = j->batch, .loss = (loss_kind)j->loss, .separate = j->separate, .windows = j->windows,
                  .gathered = j->gathered, .clip = j->clip, .optimizer = j->adam ? training_adam() : training_momentum() };
}

/* A process of the job: process 0 leaves its result in the file. */
static int child(const char *text, const char *path)
{
    job j;
    if (sscanf(text, "%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d", &j.processes, &j.world, &j.passes, &j.batch, &j.loss, &j.separate, &j.windows,
               &j.gathered, &j.clip, &j.adam, &j.uneven) != 11)
        return 2;
    alarm(60);
    int rank = atoi(getenv("TREK_RANK"));
    run c = run_of(&j);
    c.world = j.uneven && rank == 0 ? j.world + 1 : j.world; /* processes may have different numbers of ranks */
    training_run(&c, &many);
    if (rank > 0)
        return 0;
    int file = open(path, O_WRONLY | O_TRUNC);
    bool written = file >= 0 && write(file, &many, sizeof many) == (ssize_t)sizeof many;
    return written && close(file) == 0 ? 0 : 3;
}

static int launch(const job *j, const char *path)
{
    char text[128], processes[16];
    snprintf(text, sizeof text, "%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d", j->processes, j->world, j->passes, j->batch, j->loss, j->separate,
             j->windows, j->gathered, j->clip, j->adam, j->uneven);
    snprintf(processes, sizeof processes, "%d", j->processes);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("TREK_TEST_CHILD", text, 1);
        setenv("TREK_TEST_FILE", path, 1);
        execl(launcher, launcher, "-n", processes, self, (char *)NULL);
        _exit(127);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void compare(const job *j)
{
    char path[] = "/tmp/trek-test-job-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    int code = launch(j, path);
    ssize_t got = pread(file, &many, sizeof many, 0);
    close(file);
    unlink(path);
    if (code != 0 || got != (ssize_t)sizeof many)
        fail_msg("processes %d, ranks %d, loss %d, passes %d, windows %d, gathered %d, separate %d: status %d", j->processes, j->world, j->loss,
                 j->passes, j->windows, j->gathered, j->separate, code);
    run c = run_of(j);
    if (j->windows) {
        training_on_one(&c, &many, &one);
    } else {
        c.world = 1;
        training_run(&c, &one);
    }
    training_compare(&c, &many, &one);
}

static void test_per_rank(void **state)
{
    (void)state;
    for (int loss = 0; loss < N_LOSSES; loss++)
        for (int passes = 1; passes <= 2; passes++)
            compare(&(job){ .processes = 2 + (loss == 1), .world = 1 + (passes == 2), .passes = passes, .batch = 7, .loss = loss, .adam = loss == 0,
                            .clip = loss == 2, .separate = loss == 1, .uneven = loss == 2 });
}

static void test_gathered(void **state)
{
    (void)state;
    for (int loss = 0; loss < N_LOSSES; loss++)
        for (int passes = 1; passes <= 2; passes++)
            compare(&(job){ .processes = 2 + (loss == 0), .world = passes, .passes = passes, .batch = 7, .loss = loss, .gathered = 1, .adam = loss == 0,
                            .clip = loss == 2, .separate = loss == 1, .uneven = loss == 2 });
}

static void test_windows(void **state)
{
    (void)state;
    for (int loss = 0; loss < N_LOSSES; loss++)
        compare(&(job){ .processes = 2, .world = 1 + (loss == 1), .passes = 1 + (loss == 2), .batch = 2, .loss = loss, .windows = 1, .adam = loss == 0,
                        .clip = loss == 0 });
}

/* Batches of 2 among 3 processes: one of them has nothing. */
static void test_without_samples(void **state)
{
    (void)state;
    for (int gathered = 0; gathered < 2; gathered++)
        compare(&(job){ .processes = 3, .world = 1, .passes = 1, .batch = 2, .loss = BY_LABELS, .gathered = gathered, .adam = 1 });
}

int main(int count, char **words)
{
    static char path[4096];
    const char *build = getenv("TREK_TEST_BUILD"), *text = getenv("TREK_TEST_CHILD");
    (void)count;
    self = words[0];
    if (text)
        return child(text, getenv("TREK_TEST_FILE"));
    snprintf(path, sizeof path, "%s/tools/trek-run", build ? build : ".");
    launcher = path;
    if (access(path, X_OK) != 0) {
        printf("%s is not there: TREK_TEST_BUILD tells the build's folder\n", path);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_per_rank), cmocka_unit_test(test_gathered), cmocka_unit_test(test_windows), cmocka_unit_test(test_without_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
