/* SPDX-License-Identifier: Apache-2.0 */
/* trek-run from outside: what its processes find, how it ends, what it leaves: nothing. */
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"
#include "tests/tools/launched.h"

static void test_calls(void **state)
{
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
                  { { NULL, "-n", "2", "--fast", "true" }, "unknown option: --fast" },
                  { { NULL, "-g", "-1", "true" }, "--grace takes" },
                  { { NULL, "-m", "0", "true" }, "--min-processes takes" },
                  { { NULL, "-n", "2", "-m", "3", "true" }, "more than -n" },
                  { { NULL, "-r", "x", "true" }, "--restarts takes" },
                  { { NULL, "-n", "2", "-r", "1", "true" }, "--restarts goes with" },
                  { { NULL, "-n", "2", "-q", "true" }, "--quiet goes with" },
                  { { NULL, "-n", "2", "--monitor=x", "true" }, "--monitor takes" },
                  { { NULL, "--join" }, "--join takes HOST:PORT" },
                  { { NULL, "--join", "one", "true" }, "--join takes HOST:PORT" },
                  { { NULL, "--join", ":7", "true" }, "--join takes HOST:PORT" },
                  { { NULL, "--join", "one:0", "true" }, "--join takes HOST:PORT" },
                  { { NULL, "--join", "::1:7", "true" }, "--join takes HOST:PORT" },
                  { { NULL, "--join", "[]:7", "true" }, "--join takes HOST:PORT" },
                  { { NULL, "--join", "one:7", "-m", "1" }, "--min-processes does not go with --join" },
                  { { NULL, "-n", "2", "--log-dir" }, "--log-dir takes" },
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

/* Processes that come to a job have no ranks, and are told where it is. */
static void test_join(void **state)
{
    run r;
    char file[] = "/tmp/trek-secret-XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0 && write(fd, "in the file 5678\nmore", 21) == 21);
    close(fd);
    setenv("TREK_TOKEN", "what both know 12", 1);
    RUN(&r, NULL, "--join", "[fe80::1]:7", "-n", "2", "sh", "-c",
        "echo \"$TREK_JOIN:$TREK_RANK$TREK_WORLD_SIZE:$TREK_LOCAL_RANK/$TREK_LOCAL_WORLD_SIZE:$TREK_ADDRESS $TREK_PORT "
        "$TREK_TOKEN\"");
    check_exit(&r, 0);
    assert_int_equal(count_of(r.text, "new::0/2:fe80::1 7 what both know 12\n"), 1);
    assert_int_equal(count_of(r.text, "new::1/2:fe80::1 7 what both know 12\n"), 1);
    RUN(&r, NULL, "-n", "1", "sh", "-c", "echo $TREK_TOKEN."); /* so that others can come to this job */
    assert_int_equal(count_of(r.text, "what both know 12.\n"), 1);
    setenv("TREK_RANK", "0", 1);
    RUN(&r, NULL, "-n", "1", "sh", "-c", "echo ${#TREK_TOKEN}."); /* in a process of a job that is the job's */
    assert_int_equal(count_of(r.text, "64.\n"), 1);
    unsetenv("TREK_RANK");
    unsetenv("TREK_TOKEN");
    setenv("TREK_TOKEN_FILE", file, 1);
    RUN(&r, NULL, "--join", "one:7", "sh", "-c", "echo $TREK_LOCAL_WORLD_SIZE $TREK_TOKEN.");
    assert_int_equal(count_of(r.text, "1 in the file 5678.\n"), 1);
    assert_int_equal(chmod(file, 0644), 0);
    RUN(&r, NULL, "--join", "one:7", "true");
    check_exit(&r, 1);
    assert_non_null(strstr(r.text, "must be a file of this user, of mode 0600"));
    unlink(file);
    RUN(&r, NULL, "--join", "one:7", "true");
    check_exit(&r, 1);
    assert_non_null(strstr(r.text, "No such file"));
    unsetenv("TREK_TOKEN_FILE");
    RUN(&r, NULL, "--join", "one:7", "true");
    check_exit(&r, 1);
    assert_non_null(strstr(r.text, "the job's secret is missing; set TREK_TOKEN or TREK_TOKEN_FILE"));
}

/* They do not need each other, and one that is started again is as new as before. */
static void test_join_status(void **state)
{
    run r;
    char times[] = "/tmp/trek-times-XXXXXX";
    close(mkstemp(times));
    setenv("TREK_TOKEN", "what both know 12", 1);
    RUN(&r, NULL, "--join", "one:7", "-n", "2", "-g", "0.1", "sh", "-c",
        "[ $TREK_LOCAL_RANK = 0 ] && exit 3; sleep 0.5; echo to the end");
    check_exit(&r, 3);
    assert_int_equal(count_of(r.text, "trek-run: process 0 ended with status 3; the others continue"), 1);
    assert_int_equal(count_of(r.text, "to the end"), 1);
    RUN(&r, NULL, "--join", "one:7", "-r", "2", "sh", "-c",
        "echo join=$TREK_JOIN.; echo once >> $0; [ $(grep -c . $0) = 3 ] || exit 4", times);
    unlink(times);
    check_exit(&r, 0); /* also where nobody else is left here */
    assert_int_equal(count_of(r.text, "join=new."), 3);
    assert_int_equal(count_of(r.text, "; it is started again (2 of 2)"), 1);
    RUN(&r, NULL, "--join", "one:7", "-r", "1", "sh", "-c", "exit 5");
    check_exit(&r, 5);
    unsetenv("TREK_TOKEN");
}

static void test_input_and_output(void **state)
{
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

/* All bytes of each process are in files of its own, of a number that was not taken. */
static void test_log_files(void **state)
{
    run r;
    char folder[] = "/tmp/trek_run_XXXXXX", logs[64], text[32768];
    assert_non_null(mkdtemp(folder));
    snprintf(logs, sizeof logs, "%s/a/b", folder); /* is made */
    RUN(&r, NULL, "-n", "2", "-l", logs, "-p", "sh", "-c", "printf \"out\\000$TREK_RANK\"; echo err$TREK_RANK >&2");
    check_exit(&r, 0);
    assert_int_equal(read_log(logs, "process-1.log", text, sizeof text), 5);
    assert_memory_equal(text, "out\0" "1", 5);
    assert_int_equal(read_log(logs, "process-0.err", text, sizeof text), 5);
    assert_string_equal(text, "err0\n");
    struct stat about;
    snprintf(text, sizeof text, "%s/process-0.err", logs);
    assert_int_equal(stat(text, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    RUN(&r, NULL, "-n", "1", "-q", "--log-dir", logs, "sh", "-c", "head -c 20000 /dev/zero | tr '\\0' x; echo; echo end");
    check_exit(&r, 0);
    assert_string_equal(r.text, "");
    assert_int_equal(read_log(logs, "process-0.1.log", text, sizeof text), 20005); /* the first job's are still there */
    assert_string_equal(text + 20000, "\nend\n");
    RUN(&r, NULL, "-n", "2", "-m", "1", "--restart", "1", "-l", logs, "sh", "-c",
        "[ $TREK_RANK = 0 ] && { " AFTER_ENDS(2) "exit 0; }; echo join=$TREK_JOIN.; kill -KILL $$");
    check_exit(&r, 0);
    assert_int_equal(count_of(r.text, "join=1.\n"), 1);
    read_log(logs, "process-1.1.log", text, sizeof text);
    assert_string_equal(text, "join=.\n");
    read_log(logs, "process-1.2.log", text, sizeof text); /* started again */
    assert_string_equal(text, "join=1.\n");
    RUN(&r, NULL, "-n", "1", "-l", "/dev/null/x", "true");
    check_exit(&r, 2);
    assert_non_null(strstr(r.text, "--log-dir /dev/null/x: "));
    assert_int_equal(test_remove(folder), 0);
}

/* The processes are told where to write, a page is served meanwhile, and its server ends with them. */
static void test_monitor(void **state)
{
    run r;
    char folder[] = "/tmp/trek_run_XXXXXX", want[96];
    assert_non_null(mkdtemp(folder));
    unsetenv("TREK_LOG_DIR");
    RUN(&r, NULL, "-n", "2", "--monitor=0", "-l", folder, "sh", "-c", "sleep 1; echo \"at $TREK_LOG_DIR of $TREK_RUN_NAME.\"");
    check_exit(&r, 0);
    snprintf(want, sizeof want, "at %s/runs of sh-20", folder);
    assert_int_equal(count_of(r.text, want), 2);
    if (!strstr(r.text, "libmicrohttpd")) { /* which says so where it is not installed */
        snprintf(want, sizeof want, "/ shows %s/runs\n", folder);
        assert_int_equal(count_of(r.text, want), 1);
        assert_int_equal(count_of(r.text, "http://127.0.0.1:"), 1);
        const char *token = strchr(strstr(r.text, "http://127.0.0.1:") + 17, '/') + 1; /* for no other user's eyes */
        assert_int_equal(strspn(token, "0123456789abcdef"), 32);
    }
    snprintf(want, sizeof want, "%s/runs", folder);
    check_gone(want);
    assert_int_equal(test_remove(folder), 0);
    setenv("TREK_LOG_DIR", "/tmp", 1); /* what is set holds */
    setenv("TREK_RUN_NAME", "mine", 1);
    RUN(&r, NULL, "-n", "1", "--monitor=0", "sh", "-c", "echo \"at $TREK_LOG_DIR of $TREK_RUN_NAME.\"");
    assert_int_equal(count_of(r.text, "at /tmp of mine.\n"), 1);
    unsetenv("TREK_LOG_DIR");
    unsetenv("TREK_RUN_NAME");
}

/* Numbers in colours where they are wanted, lines whole however long they are and whatever is in them. */
static void test_lines(void **state)
{
    run r;
    setenv("CLICOLOR_FORCE", "1", 1);
    RUN(&r, NULL, "-n", "2", "-p", "sh", "-c", "echo text");
    assert_int_equal(count_of(r.text, "\x1b[36m[0]\x1b[0m text\n"), 1);
    assert_int_equal(count_of(r.text, "\x1b[33m[1]\x1b[0m text\n"), 1);
    setenv("NO_COLOR", "1", 1);
    RUN(&r, NULL, "-n", "1", "-p", "sh", "-c", "echo text");
    assert_string_equal(r.text, "[0] text\n");
    unsetenv("NO_COLOR");
    unsetenv("CLICOLOR_FORCE");
    RUN(&r, NULL, "-n", "4", "-p", "sh", "-c",
        "for k in 1 2 3 4 5 6 7 8; do printf 'a%.0s' 1 2 3; sleep 0.01; echo \"b$TREK_RANK\"; done");
    assert_int_equal(count_of(r.text, "aaab"), 32); /* never in the midst of another's */
    for (int k = 0; k < 4; k++) {
        char line[32];
        snprintf(line, sizeof line, "[%d] aaab%d\n", k, k);
        assert_int_equal(count_of(r.text, line), 8);
    }
}

static void test_exit_status(void **state)
{
    run r;
    RUN(&r, NULL, "-n", "3", "true");
    check_exit(&r, 0);
    RUN(&r, NULL, "-n", "3", "sh", "-c", "[ $TREK_RANK = 1 ] || { " AFTER_ENDS(1) "exit 5; }; exit 3");
    check_exit(&r, 3); /* the first's */
    assert_non_null(strstr(r.text, "rank 1 ended with status 3"));
    RUN(&r, NULL, "-n", "2", "sh", "-c", "[ $TREK_RANK = 1 ] && kill -SEGV $$; sleep 0.3");
    check_exit(&r, 128 + SIGSEGV);
    assert_non_null(strstr(r.text, "rank 1 was ended by signal 11"));
    RUN(&r, NULL, "-n", "2", "-g", "100", "sh", "-c",
        "[ $TREK_RANK = 1 ] && exit 3; " AFTER_ENDS(1) "sleep 3; kill -KILL $$"); /* which is not what rank 1 failed by */
    check_exit(&r, 3);
    RUN(&r, NULL, "-n", "2", "sh", "-c",
        "[ $TREK_RANK = 1 ] || { " AFTER_ENDS(1) "exit 0; }"); /* who ends earlier harms nobody */
    check_exit(&r, 0);
}

/* A process that is killed closes its connections before it can be waited for: who failed by that may be seen to end first. Here
 * both have ended when the launcher, which was stopped, looks. */
static void test_cause(void **state)
{
    run r;
    char folder[] = "/tmp/trek_run_XXXXXX";
    static const char script[] = "until_ended() { until grep -q State:.Z /proc/$1/status; do sleep 0.01; done; }\n"
                                 "[ $TREK_RANK = 1 ] && { touch $0/begun; until [ -e $0/stopped ]; do sleep 0.01; done; echo $$ "
                                 "> $0/pid.new; mv $0/pid.new $0/pid; exit 3; }\n"
                                 "until [ -e $0/begun ]; do sleep 0.01; done; kill -STOP $PPID; touch $0/stopped\n"
                                 "until [ -e $0/pid ]; do sleep 0.01; done; until_ended $(cat $0/pid)\n"
                                 "(until_ended $$; kill -CONT $PPID) &\n"
                                 "kill -KILL $$";
    assert_non_null(mkdtemp(folder));
    RUN(&r, NULL, "-n", "2", "sh", "-c", (char *)(uintptr_t)script, folder);
    check_exit(&r, 128 + SIGKILL);
    assert_non_null(strstr(r.text, "rank 0 was ended by signal 9"));
    assert_int_equal(test_remove(folder), 0);
}

/* Words of a script whose argument is a folder: rank 1 fails when the others say that they are ready to be ended. */
#define FAILS_LATER "[ $TREK_RANK = 1 ] && { until [ -e $0/ready ]; do sleep 0.01; done; rm $0/ready; exit 4; }; "

/* The others may end by themselves; then they are asked to, then made to; and what they started goes, too. */
static void test_failure_ends_all(void **state)
{
    run r;
    char folder[] = "/tmp/trek_run_XXXXXX";
    assert_non_null(mkdtemp(folder));
    RUN(&r, NULL, "-n", "2", "-g", "100", "sh", "-c", "[ $TREK_RANK = 1 ] && exit 4; sleep 0.5; echo said goodbye");
    check_exit(&r, 4);
    assert_non_null(strstr(r.text, "said goodbye"));
    RUN(&r, NULL, "-n", "2", "-g", "0.3", "sh", "-c",
        FAILS_LATER "trap 'echo asked; exit 0' TERM; touch $0/ready; while :; do sleep 0.1; done", folder);
    check_exit(&r, 4);
    assert_non_null(strstr(r.text, "asked"));
    char script[256];
    snprintf(script, sizeof script, FAILS_LATER "trap '' TERM; sleep %s & touch $0/ready; sleep %s; sleep 600", unique(0),
             unique(0));
    RUN(&r, NULL, "-n", "2", "-g", "0.2", "sh", "-c", script, folder);
    check_exit(&r, 4);
    check_gone(unique(0));
    assert_int_equal(rmdir(folder), 0);
}

/* Those who are enough go on, whoever else fails. */
static void test_enough(void **state)
{
    run r;
    RUN(&r, NULL, "-n", "3", "-m", "2", "-g", "0.1", "sh", "-c", "[ $TREK_RANK = 1 ] && kill -KILL $$; sleep 1; echo went on");
    check_exit(&r, 0);
    assert_non_null(strstr(r.text, "rank 1 was ended by signal 9 (Killed); the others continue"));
    assert_non_null(strstr(r.text, "went on"));
    RUN(&r, NULL, "-n", "3", "-m", "2", "-g", "0.1", "sh", "-c", "[ $TREK_RANK = 0 ] || exit $TREK_RANK; sleep 600");
    assert_true(WIFEXITED(r.status) && WEXITSTATUS(r.status) >= 1 && WEXITSTATUS(r.status) <= 2);
    assert_non_null(strstr(r.text, "the others have 0.1 s to end"));
    RUN(&r, NULL, "-n", "2", "-m", "1", "-r", "2", "-p", "sh", "-c",
        "[ $TREK_RANK = 0 ] && { " AFTER_ENDS(3) "exit 0; }; echo join=$TREK_JOIN.; kill -KILL $$");
    check_exit(&r, 0);
    assert_non_null(strstr(r.text, "[1] join=.\n"));
    assert_non_null(strstr(r.text, "[1] join=1.\n"));
    assert_non_null(strstr(r.text, "rank 1 was ended by signal 9 (Killed); it is started again (2 of 2)"));
    assert_non_null(strstr(r.text, "rank 1 was ended by signal 9 (Killed); the others continue"));
    RUN(&r, NULL, "-n", "3", "-m", "1", "sh", "-c", "exit 7");
    check_exit(&r, 7);
    RUN(&r, NULL, "-n", "3", "-m", "1", "sh", "-c", "[ $TREK_RANK = 2 ] || { " AFTER_ENDS(1) "exit 7; }"); /* one has done well */
    check_exit(&r, 0);
}

/* One that stands still when the others have got to the end is waited for no longer than the grace time; one that goes on, is. */
static void test_stopped(void **state)
{
    run r;
    RUN(&r, NULL, "-n", "3", "-m", "1", "-g", "0.3", "sh", "-c", "[ $TREK_RANK != 1 ] || kill -STOP $$; exit 0");
    check_exit(&r, 0);
    assert_int_equal(count_of(r.text, "trek-run: rank 1 has been stopped for 0.3 s, and the others have ended: SIGTERM\n"), 1);
    RUN(&r, NULL, "-n", "2", "-g", "0.3", "sh", "-c", "[ $TREK_RANK != 1 ] || kill -STOP $$; exit 0");
    check_exit(&r, 128 + SIGTERM);
    RUN(&r, NULL, "-n", "3", "-g", "0.3", "sh", "-c", "[ $TREK_RANK != 1 ] || kill -STOP $$; exit 3");
        /* nor when they have failed */
    check_exit(&r, 3);
    RUN(&r, NULL, "-n", "2", "-g", "100", "sh", "-c",
        "[ $TREK_RANK = 1 ] && { (sleep 1; kill -CONT $$) & kill -STOP $$; wait; echo went on; }; exit 0");
    check_exit(&r, 0);
    assert_int_equal(count_of(r.text, "went on\n"), 1);
}

static void test_orphans(void **state)
{
    run r;
    char script[256];
    snprintf(script, sizeof script, "(trap '' TERM; sleep %s) > /dev/null 2>&1 & exit 0", unique(1));
    RUN(&r, NULL, "-n", "3", "sh", "-c", script);
    check_exit(&r, 0);
    check_gone(unique(1));
}

static void test_signals(void **state)
{
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
    run r;
    char folder[] = "/tmp/trek_run_XXXXXX";
    assert_non_null(mkdtemp(folder));
    RUN(&r, NULL, "-n", "3", "-g", "0.3", "sh", "-c", "if [ $TREK_RANK = 1 ]; then exit 3; fi; exec sleep 600");
    check_exit(&r, 3);
    assert_int_equal(count_of(r.text, "trek-run: rank 1 ended with status 3; the others have 0.3 s to end\n"), 1);
    assert_int_equal(count_of(r.text, "trek-run: ranks 0, 2 have not ended 0.3 s after rank 1: SIGTERM\n"), 1);
    RUN(&r, NULL, "-n", "2", "-g", "0.2", "sh", "-c", FAILS_LATER "trap '' TERM; touch $0/ready; while :; do sleep 0.1; done",
        folder);
    check_exit(&r, 4);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(count_of(r.text, "trek-run: rank 0 has not ended 5 s after SIGTERM: SIGKILL\n"), 1);
}

/* A launcher that is killed leaves no process behind. */
static void test_killed_launcher(void **state)
{
    run r;
    char script[128];
    snprintf(script, sizeof script, "echo ready; exec sleep %s", unique(2));
    start(&r, (char *[]){ NULL, "-n", "2", "sh", "-c", script, NULL }, NULL);
    while (processes_running(unique(2)) < 2 || count_of(r.text, "ready") < 2)
        read_until(&r, count_of(r.text, "ready") < 2 ? "ready\nready" : "ready");
    kill(r.pid, SIGKILL);
    finish(&r);
    assert_true(WIFSIGNALED(r.status));
    check_gone(unique(2));
}

/* --- the job's port --------------------------------------------------------------------------------- */

static int bind_port(int reuse)
{
    const char *port = getenv("TREK_PORT");
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY),
                                   .sin_port = htons((uint16_t)atoi(port ? port : "0")) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
    int wrong = bind(fd, (struct sockaddr *)&address, sizeof address) == 0 ? 0 : errno;
    wrong = wrong ? wrong : listen(fd, 1) == 0 ? 0 : errno;
    close(fd);
    return wrong;
}

/* Nobody else's while nobody listens there; process 0 may. */
static int look_at_port(void) { return bind_port(0) == EADDRINUSE && bind_port(1) == 0 ? 0 : 1; }

static void test_port_is_kept(void **state)
{
    run r;
    char self[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = '\0';
    RUN(&r, NULL, "-n", "1", self, "look at the port");
    check_exit(&r, 0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "look at the port") == 0)
        return look_at_port();
    launched_find();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),        cmocka_unit_test(test_environment), cmocka_unit_test(test_input_and_output),
        cmocka_unit_test(test_exit_status),  cmocka_unit_test(test_cause),       cmocka_unit_test(test_failure_ends_all),
        cmocka_unit_test(test_enough),       cmocka_unit_test(test_stopped),     cmocka_unit_test(test_orphans),
        cmocka_unit_test(test_log_files),    cmocka_unit_test(test_lines),       cmocka_unit_test(test_monitor),
        cmocka_unit_test(test_port_is_kept), cmocka_unit_test(test_signals),     cmocka_unit_test(test_killed_launcher),
        cmocka_unit_test(test_words),        cmocka_unit_test(test_join),        cmocka_unit_test(test_join_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
