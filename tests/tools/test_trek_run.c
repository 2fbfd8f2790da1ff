/* SPDX-License-Identifier: Apache-2.0 */
/* trek-run from outside: what its processes find, how it ends, what it leaves: nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char program[4096];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_ms(int ms) { nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000L }, NULL); }

typedef struct run {
    pid_t pid;
    int out;
    char text[8192];
    int status; /* as of waitpid */
    double seconds;
} run;

/* argv[0] is filled in. Both outputs come back; input (NULL: none) is what it reads. */
static void start(run *r, char **argv, const char *input)
{
    int out[2], in[2];
    argv[0] = program;
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    r->pid = fork();
    if (r->pid == 0) {
        alarm(60);
        signal(SIGINT, SIG_DFL); /* a shell's background job and nohup ignore them, and so would the ranks' shells */
        signal(SIGHUP, SIG_DFL);
        signal(SIGQUIT, SIG_DFL);
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(out[1], 2);
        execv(program, argv);
        _exit(98);
    }
    close(out[1]);
    close(in[0]);
    if (input)
        assert_true(write(in[1], input, strlen(input)) >= 0);
    close(in[1]);
    r->out = out[0];
    r->text[0] = '\0';
}

static void read_until(run *r, const char *part)
{
    size_t used = strlen(r->text);
    while (!part || !strstr(r->text, part)) {
        ssize_t got = read(r->out, r->text + used, sizeof r->text - 1 - used);
        if (got <= 0 && errno != EINTR)
            break;
        used += got > 0 ? (size_t)got : 0;
        r->text[used] = '\0';
        if (got == 0)
            break;
    }
}

static void finish(run *r)
{
    double begin = now();
    read_until(r, NULL);
    close(r->out);
    waitpid(r->pid, &r->status, 0);
    r->seconds = now() - begin;
}

#define RUN(r, input, ...)                                                                                                       \
    do {                                                                                                                         \
        start((r), (char *[]){ NULL, __VA_ARGS__, NULL }, (input));                                                              \
        finish(r);                                                                                                               \
    } while (0)

static void check_exit(const run *r, int code)
{
    if (!WIFEXITED(r->status) || WEXITSTATUS(r->status) != code)
        print_error("status %x, expected exit %d; it wrote:\n%s\n", (unsigned)r->status, code, r->text);
    assert_true(WIFEXITED(r->status));
    assert_int_equal(WEXITSTATUS(r->status), code);
}

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        count++;
    return count;
}

/* Processes whose command line has this word. */
static int count_running(const char *word)
{
    DIR *dir = opendir("/proc");
    struct dirent *entry;
    int count = 0;
    while ((entry = readdir(dir))) {
        char path[300], line[1024];
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        int fd = atoi(entry->d_name) > 0 ? open(path, O_RDONLY) : -1;
        ssize_t length = fd >= 0 ? read(fd, line, sizeof line) : 0;
        if (fd >= 0)
            close(fd);
        if (length > 0 && memmem(line, (size_t)length, word, strlen(word)))
            count++;
    }
    closedir(dir);
    return count;
}

/* Waits up to two seconds for them to be gone. */
static void check_gone(const char *word)
{
    for (int k = 0; k < 40 && count_running(word) > 0; k++)
        sleep_ms(50);
    assert_int_equal(count_running(word), 0);
}

/* A number of seconds that no other program sleeps for. */
static const char *unique(int k)
{
    static char text[8][32];
    snprintf(text[k], sizeof text[k], "60.%d%d", (int)getpid(), k);
    return text[k];
}

static void test_calls(void **state)
{
    (void)state;
    run r;
    RUN(&r, NULL, "--help");
    check_exit(&r, 0);
    assert_non_null(strstr(r.text, "usage: trek-run"));
    static const struct {
        char *argv[6];
        const char *says;
    } wrong[] = { { { NULL }, "-n is missing" },
                  { { NULL, "true" }, "-n is missing" },
                  { { NULL, "-n", "2" }, "which program" },
                  { { NULL, "-n" }, "-n takes" },
                  { { NULL, "-n", "0", "true" }, "-n takes" },
                  { { NULL, "-n", "2x", "true" }, "-n takes" },
                  { { NULL, "-n", "2000", "true" }, "-n takes" },
                  { { NULL, "-n", "1.5", "true" }, "-n takes" },
                  { { NULL, "-n", "2", "--fast", "true" }, "no such option: --fast" },
                  { { NULL, "-g", "-1", "true" }, "--grace takes" },
                  { { NULL, "-m", "0", "true" }, "--min-processes takes" },
                  { { NULL, "-n", "2", "-m", "3", "true" }, "more than -n" },
                  { { NULL, "-r", "x", "true" }, "--restarts takes" },
                  { { NULL, "-n", "2", "-r", "1", "true" }, "--restarts goes with" },
                  { { NULL, "-n", "2", "-c", "1000", "true" }, "cores" } };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        char *argv[8];
        memcpy(argv, wrong[k].argv, sizeof wrong[k].argv);
        argv[6] = NULL;
        start(&r, argv, NULL);
        finish(&r);
        check_exit(&r, 2);
        assert_non_null(strstr(r.text, wrong[k].says));
    }
    RUN(&r, NULL, "-n", "2", "/no/such/program");
    check_exit(&r, 127);
    assert_non_null(strstr(r.text, "/no/such/program"));
    RUN(&r, NULL, "-n", "2", "/etc/passwd");
    check_exit(&r, 126);
}

static void test_environment(void **state)
{
    (void)state;
    run r;
    setenv("TREK_THREADS", "7", 1);
    RUN(&r, NULL, "-n", "3", "--", "sh", "-c",
        "echo \"$TREK_RANK/$TREK_LOCAL_RANK/$TREK_WORLD_SIZE/$TREK_ADDRESS/$TREK_THREADS/${#TREK_TOKEN}/${TREK_PORT:+port}\"");
    unsetenv("TREK_THREADS");
    check_exit(&r, 0);
    for (int k = 0; k < 3; k++) {
        char line[64];
        snprintf(line, sizeof line, "%d/%d/3/127.0.0.1/7/64/port\n", k, k);
        assert_int_equal(count_of(r.text, line), 1);
    }
    RUN(&r, NULL, "-n", "2", "sh", "-c", "echo job:$TREK_PORT:$TREK_TOKEN:");
    char *end = strchr(r.text, '\n');
    assert_non_null(end);
    assert_memory_equal(r.text, end + 1, (size_t)(end - r.text)); /* the same for both */
    RUN(&r, NULL, "-n", "100", "sh", "-c", "echo threads:$TREK_THREADS");
    assert_int_equal(count_of(r.text, "threads:1\n"), 100);
    RUN(&r, NULL, "-n", "1", "-c", "1", "sh", "-c", "nproc; echo threads:$TREK_THREADS");
    assert_string_equal(r.text, "1\nthreads:1\n");
}

static void test_input_and_output(void **state)
{
    (void)state;
    run r;
    RUN(&r, "one\ntwo\n", "-n", "3", "-p", "sh", "-c", "cat; echo at the end of $TREK_RANK >&2; printf rest");
    check_exit(&r, 0);
    assert_int_equal(count_of(r.text, "[0] one\n"), 1);
    assert_int_equal(count_of(r.text, "[0] two\n"), 1);
    assert_int_equal(count_of(r.text, "one"), 1);
    assert_int_equal(count_of(r.text, "[2] at the end of 2\n"), 1);
    assert_int_equal(count_of(r.text, "rest\n"), 3);
    RUN(&r, NULL, "-n", "2", "echo", "plain");
    assert_string_equal(r.text, "plain\nplain\n");
}

static void test_exit_status(void **state)
{
    (void)state;
    run r;
    RUN(&r, NULL, "-n", "3", "true");
    check_exit(&r, 0);
    RUN(&r, NULL, "-n", "3", "sh", "-c", "[ $TREK_RANK = 1 ] || { sleep 0.5; exit 5; }; exit 3");
    check_exit(&r, 3); /* the first's */
    assert_non_null(strstr(r.text, "rank 1 ended with status 3"));
    RUN(&r, NULL, "-n", "2", "sh", "-c", "[ $TREK_RANK = 1 ] && kill -SEGV $$; sleep 0.3");
    check_exit(&r, 128 + SIGSEGV);
    assert_non_null(strstr(r.text, "rank 1 was ended by signal 11"));
    RUN(&r, NULL, "-n", "2", "sh", "-c", "[ $TREK_RANK = 1 ] && exit 3; sleep 0.03; kill -KILL $$");
        /* by which rank 1 had failed */
    check_exit(&r, 128 + SIGKILL);
    assert_non_null(strstr(r.text, "rank 0 was ended by signal 9"));
    RUN(&r, NULL, "-n", "2", "sh", "-c", "[ $TREK_RANK = 1 ] && exit 3; sleep 1; kill -KILL $$"); /* or not */
    check_exit(&r, 3);
    RUN(&r, NULL, "-n", "2", "sh", "-c", "[ $TREK_RANK = 1 ] || sleep 0.5"); /* who ends earlier harms nobody */
    check_exit(&r, 0);
}

/* The others may end by themselves; then they are asked to, then made to; and what they started goes, too. */
static void test_failure_ends_all(void **state)
{
    (void)state;
    run r;
    RUN(&r, NULL, "-n", "2", "-g", "5", "sh", "-c", "[ $TREK_RANK = 1 ] && exit 4; sleep 0.5; echo said goodbye");
    check_exit(&r, 4);
    assert_non_null(strstr(r.text, "said goodbye"));
    RUN(&r, NULL, "-n", "2", "-g", "0.3", "sh", "-c",
        "[ $TREK_RANK = 1 ] && exit 4; trap 'echo asked; exit 0' TERM; while :; do sleep 0.1; done");
    check_exit(&r, 4);
    assert_non_null(strstr(r.text, "asked"));
    assert_true(r.seconds < 4);
    char script[256];
    snprintf(script, sizeof script, "[ $TREK_RANK = 1 ] && exit 4; trap '' TERM; sleep %s & sleep %s; sleep 9", unique(0),
             unique(0));
    RUN(&r, NULL, "-n", "2", "-g", "0.2", "sh", "-c", script);
    check_exit(&r, 4);
    assert_true(r.seconds < 9);
    assert_int_equal(count_running(unique(0)), 0);
}

/* Those who are enough go on, whoever else fails. */
static void test_enough(void **state)
{
    (void)state;
    run r;
    RUN(&r, NULL, "-n", "3", "-m", "2", "-g", "0.1", "sh", "-c", "[ $TREK_RANK = 1 ] && kill -KILL $$; sleep 1; echo went on");
    check_exit(&r, 0);
    assert_non_null(strstr(r.text, "rank 1 was ended by signal 9 (Killed); the others go on"));
    assert_non_null(strstr(r.text, "went on"));
    RUN(&r, NULL, "-n", "3", "-m", "2", "-g", "0.1", "sh", "-c", "[ $TREK_RANK = 0 ] || exit $TREK_RANK; sleep 9");
    assert_true(WIFEXITED(r.status) && WEXITSTATUS(r.status) >= 1 && WEXITSTATUS(r.status) <= 2);
    assert_non_null(strstr(r.text, "the others have 0.1 s to end"));
    assert_true(r.seconds < 8);
    RUN(&r, NULL, "-n", "2", "-m", "1", "-r", "2", "-p", "sh", "-c",
        "[ $TREK_RANK = 0 ] && sleep 5 && exit 0; echo join=$TREK_JOIN.; kill -KILL $$");
    check_exit(&r, 0);
    assert_non_null(strstr(r.text, "[1] join=.\n"));
    assert_non_null(strstr(r.text, "[1] join=1.\n"));
    assert_non_null(strstr(r.text, "rank 1 was ended by signal 9 (Killed); it is started again (2 of 2)"));
    assert_non_null(strstr(r.text, "rank 1 was ended by signal 9 (Killed); the others go on"));
    RUN(&r, NULL, "-n", "3", "-m", "1", "sh", "-c", "exit 7");
    check_exit(&r, 7);
    RUN(&r, NULL, "-n", "3", "-m", "1", "sh", "-c", "[ $TREK_RANK = 2 ] || { sleep 0.5; exit 7; }"); /* one has done well */
    check_exit(&r, 0);
}

static void test_orphans(void **state)
{
    (void)state;
    run r;
    char script[256];
    snprintf(script, sizeof script, "(trap '' TERM; sleep %s) > /dev/null 2>&1 & exit 0", unique(1));
    RUN(&r, NULL, "-n", "3", "sh", "-c", script);
    check_exit(&r, 0);
    assert_true(r.seconds < 5);
    assert_int_equal(count_running(unique(1)), 0);
}

static void test_signals(void **state)
{
    (void)state;
    static const struct {
        int number;
        const char *name;
    } passed[] = { { SIGTERM, "TERM" }, { SIGINT, "INT" }, { SIGHUP, "HUP" }, { SIGUSR1, "USR1" }, { SIGUSR2, "USR2" } };
    for (size_t k = 0; k < 5; k++) {
        run r;
        char script[256];
        snprintf(script, sizeof script, "trap 'echo got %s; exit 0' %s; echo ready; while :; do sleep 0.05; done", passed[k].name,
                 passed[k].name);
        start(&r, (char *[]){ NULL, "-n", "3", "sh", "-c", script, NULL }, NULL);
        while (count_of(r.text, "ready") < 3 && strlen(r.text) < 100) {
            size_t used = strlen(r.text);
            ssize_t got = read(r.out, r.text + used, 100);
            assert_true(got > 0);
            r.text[used + (size_t)got] = '\0';
        }
        kill(r.pid, passed[k].number);
        finish(&r);
        check_exit(&r, 0);
        char line[32];
        snprintf(line, sizeof line, "got %s\n", passed[k].name);
        assert_int_equal(count_of(r.text, line), 3);
    }
}

/* It says whom it ends, and why. */
static void test_words(void **state)
{
    (void)state;
    run r;
    RUN(&r, NULL, "-n", "3", "-g", "0.3", "sh", "-c", "if [ $TREK_RANK = 1 ]; then exit 3; fi; exec sleep 30");
    check_exit(&r, 3);
    assert_int_equal(count_of(r.text, "trek-run: rank 1 ended with status 3; the others have 0.3 s to end\n"), 1);
    assert_int_equal(count_of(r.text, "trek-run: ranks 0, 2 have not ended 0.3 s after rank 1: SIGTERM\n"), 1);
    RUN(&r, NULL, "-n", "2", "-g", "0.2", "sh", "-c",
        "if [ $TREK_RANK = 1 ]; then exit 3; fi; trap '' TERM; while :; do sleep 0.1; done");
    check_exit(&r, 3);
    assert_int_equal(count_of(r.text, "trek-run: rank 0 has not ended 5 s after SIGTERM: SIGKILL\n"), 1);
}

/* A launcher that is killed leaves no process behind. */
static void test_killed_launcher(void **state)
{
    (void)state;
    run r;
    char script[128];
    snprintf(script, sizeof script, "echo ready; exec sleep %s", unique(2));
    start(&r, (char *[]){ NULL, "-n", "2", "sh", "-c", script, NULL }, NULL);
    read_until(&r, "ready");
    sleep_ms(200);
    kill(r.pid, SIGKILL);
    finish(&r);
    assert_true(WIFSIGNALED(r.status));
    check_gone(unique(2));
}

int main(void)
{
    const char *build = getenv("TREK_TEST_BUILD");
    snprintf(program, sizeof program, "%s/tools/trek-run", build ? build : ".");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),       cmocka_unit_test(test_environment),      cmocka_unit_test(test_input_and_output),
        cmocka_unit_test(test_exit_status), cmocka_unit_test(test_failure_ends_all), cmocka_unit_test(test_enough),
        cmocka_unit_test(test_orphans),
        cmocka_unit_test(test_signals),     cmocka_unit_test(test_killed_launcher),  cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
