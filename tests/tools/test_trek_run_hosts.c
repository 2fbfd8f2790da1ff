/* SPDX-License-Identifier: Apache-2.0 */
/* trek-run over several machines: an ssh that is a script of this test starts what it is asked for on this machine, by a shell,
 * with another environment and in another folder, as the real one would; and the real one, where sshd is installed. */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "distributed/run.h"
#include "monitor/monitor.h"
#include "monitor/viewer/run_reader.h"
#include "nn/state_tensors.h"
#include "tests/distributed/run/line.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"
#include "tests/tools/launched.h"

static char folder[64], ssh[96], self[4096];

/* What it says of a few names: "refuse" cannot be reached, "noisy" greets, "old" has another version, "babble" says what is
 * no answer, "apart..." has networks of its own. */
static const char script[] =
    "#!/bin/sh\n"
    "host=$1; shift\n"
    "cd /\n"
    "echo $host >> %s/calls\n"
    "case $host in\n"
    "refuse) echo 'ssh: connect to host refuse port 22: Connection refused' >&2; exit 255;;\n"
    "noisy) echo Welcome; printf 'no newline';;\n"
    "old) printf '\\033]0;title\\007\\n'; echo trek-run agent 0; exec sleep 30;;\n"
    "babble) echo trek-run agent 3; head -c 1000 /dev/zero | tr '\\0' x; exec sleep 30;;\n"
    "apart*) exec unshare -rn env -i PATH=\"$PATH\" HOST=$host SSH_CONNECTION=\"$APART\" sh -c \"$*\";;\n"
    "esac\n"
    "exec env -i ${ASAN_OPTIONS:+\"ASAN_OPTIONS=$ASAN_OPTIONS\"} ${LSAN_OPTIONS:+\"LSAN_OPTIONS=$LSAN_OPTIONS\"} "
    "${LD_PRELOAD:+\"LD_PRELOAD=$LD_PRELOAD\"} ${TREK_TEST_SLEEP:+\"TREK_TEST_SLEEP=$TREK_TEST_SLEEP\"} PATH=\"$PATH\" "
    "HOST=$host sh -c \"$*\"\n";

static int begin(void **state)
{
    snprintf(folder, sizeof folder, "/tmp/trek-hosts-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(ssh, sizeof ssh, "%s/ssh", folder);
    FILE *file = fopen(ssh, "w");
    if (!file || fprintf(file, script, folder) < 0 || fclose(file) != 0 || chmod(ssh, 0700) != 0)
        return -1;
    return setenv("TREK_RUN_SSH", ssh, 1);
}

static int end(void **state)
{
    return test_remove(folder);
}

static void expect(const run *r, const char *part, int count)
{
    if (count_of(r->text, part) != count)
        print_error("%d times \"%s\", expected %d, in:\n%s\n", count_of(r->text, part), part, count, r->text);
    assert_int_equal(count_of(r->text, part), count);
}

/* --- who runs where --------------------------------------------------------------------------------- */

static void write_file(const char *name, const char *text, char path[128])
{
    snprintf(path, 128, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void test_places(void **state)
{
    run r;
    char path[128];
    RUN(&r, NULL, "-H", "a:1,b:3,me@c.d:1,localhost:2,[fe80::1]:1", "--dry-run", "prog", "x");
    check_exit(&r, 0);
    expect(&r, "rank 0 on a in ", 1);
    expect(&r, "ranks 1 to 3 on b in ", 1);
    expect(&r, "rank 4 on me@c.d in ", 1);
    expect(&r, "ranks 5 to 6 on localhost in ", 1);
    expect(&r, "rank 7 on fe80::1 in ", 1);
    expect(&r, ": prog x\n", 5);
    RUN(&r, NULL, "-H", "a:2,b:2,c:2", "-n", "3", "--dry-run", "-w", "/there", "true"); /* those who are needed */
    expect(&r, "ranks 0 to 1 on a in /there: true\nrank 2 on b in /there: true\n", 1);
    expect(&r, " on c", 0);
    RUN(&r, NULL, "-H", "a,b:1,c", "-n", "6", "--dry-run", "true"); /* who have no number share */
    expect(&r, "ranks 0 to 2 on a in ", 1);
    expect(&r, "rank 3 on b in ", 1);
    expect(&r, "ranks 4 to 5 on c in ", 1);
    RUN(&r, NULL, "-H", "a,b", "--dry-run", "true");
    expect(&r, "rank 1 on b in ", 1);
    write_file("hosts", "# ours\n\na slots=2 max_slots=4 # old\n b:1\r\nc\nc\na slots=1\n", path);
    RUN(&r, NULL, "--hostfile", path, "--dry-run", "true");
    expect(&r, "ranks 0 to 2 on a in ", 1);
    expect(&r, "rank 3 on b in ", 1);
    expect(&r, "ranks 4 to 5 on c in ", 1); /* as batch systems write it */
}

static void test_wrong_places(void **state)
{
    static const struct {
        char *list, *n;
        const char *says;
    } wrong[] = { { "a:2,b:2", "5", "-n 5: the hosts have 4 slots" },
                  { "a:x", "1", "--hosts: no NAME or NAME:PROCESSES: \"a:x\"" },
                  { "a:0", "1", "\"a:0\"" },
                  { "a:2000", "1", "\"a:2000\"" },
                  { "a,,b", "1", "\"\"" },
                  { "-oProxyCommand=x:1", "1", "\"-oProxyCommand=x:1\"" },
                  { "a;b", "1", "\"a;b\"" },
                  { "fe80::1:4", "1", "\"fe80::1:4\"" },
                  { "[::1", "1", "\"[::1\"" },
                  { "me@", "1", "\"me@\"" } };
    run r;
    char path[128];
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        RUN(&r, NULL, "-H", wrong[k].list, "-n", wrong[k].n, "--dry-run", "true");
        check_exit(&r, 2);
        expect(&r, wrong[k].says, 1);
    }
    write_file("hosts", "a slots=2\nb slts=2\n", path);
    RUN(&r, NULL, "--hostfile", path, "true");
    check_exit(&r, 2);
    expect(&r, "hosts, line 2: no slots=PROCESSES: slts=2", 1);
    write_file("hosts", "# nobody\n", path);
    RUN(&r, NULL, "--hostfile", path, "true");
    check_exit(&r, 2);
    expect(&r, "it lists no host", 1);
    RUN(&r, NULL, "--hostfile", "/no/such", "true");
    check_exit(&r, 2);
    expect(&r, "/no/such: No such file or directory", 1);
    RUN(&r, NULL, "-H", "a", "-x", "NO_SUCH_VARIABLE", "true");
    check_exit(&r, 2);
    expect(&r, "this variable is not set: NO_SUCH_VARIABLE", 1);
    RUN(&r, NULL, "-H", "a", "--port", "70000", "true");
    check_exit(&r, 2);
    expect(&r, "--port takes", 1);
}

/* --- what goes along ------------------------------------------------------------------------------------ */

static void test_environment(void **state)
{
    run r;
    setenv("TREK_TEST_WORDS", "a \"b\"\n'c'", 1);
    setenv("OTHER_KEPT", "kept", 1);
    setenv("OTHER_LEFT", "left", 1);
    RUN(&r, NULL, "-H", "a:2,b:1", "-x", "GIVEN=x  $y", "--env", "OTHER_KEPT", "sh", "-c",
        "echo \"$HOST/$TREK_RANK/$TREK_LOCAL_RANK/$TREK_WORLD_SIZE/$TREK_LOCAL_WORLD_SIZE/$TREK_ADDRESS/${#TREK_TOKEN}/"
        "$TREK_TEST_WORDS/$GIVEN/$OTHER_KEPT/$OTHER_LEFT.\"");
    unsetenv("TREK_TEST_WORDS");
    check_exit(&r, 0);
    for (int k = 0; k < 3; k++) {
        char line[160];
        snprintf(line, sizeof line, "%s/%d/%d/3/%d/127.0.0.1/64/a \"b\"\n'c'/x  $y/kept/.\n", k < 2 ? "a" : "b", k, k % 2,
                 k < 2 ? 2 : 1);
        expect(&r, line, 1);
    }
    RUN(&r, NULL, "-H", "a:1,localhost:2", "--port", "1234", "--address", "10.9.8.7", "sh", "-c",
        "echo $TREK_LOCAL_RANK of $TREK_LOCAL_WORLD_SIZE at $TREK_ADDRESS:$TREK_PORT; echo \"left=$OTHER_LEFT.\"");
    check_exit(&r, 0);
    expect(&r, "0 of 1 at 10.9.8.7:1234\n", 1);
    expect(&r, "0 of 2 at 10.9.8.7:1234\n", 1);
    expect(&r, "1 of 2 at 10.9.8.7:1234\n", 1);
    expect(&r, "left=left.\n", 2); /* this machine's have it anyway */
    expect(&r, "left=.\n", 1);
    char calls[64], text[256];
    assert_int_equal(read_log(folder, "calls", calls, sizeof calls), 6); /* one for a machine, none for this one */
    assert_int_equal(count_of(calls, "a\n"), 2);
    assert_int_equal(count_of(calls, "b\n"), 1);
    RUN(&r, NULL, "-H", "a:1,b:1", "sh", "-c", "echo $TREK_PORT $TREK_TOKEN $TREK_RUN_NAME");
    snprintf(text, sizeof text, "%.*s", (int)strcspn(r.text, "\n"), r.text);
    expect(&r, text, 2);
}

/* On several machines at once; each process is told its number on its own machine only. */
static void test_join(void **state)
{
    run r;
    setenv("TREK_TOKEN", "what both know 12", 1);
    RUN(&r, NULL, "--join", "10.9.8.7:29500", "-H", "a:2,b:1", "sh", "-c",
        "echo \"$HOST:$TREK_JOIN:$TREK_RANK$TREK_WORLD_SIZE:$TREK_LOCAL_RANK/$TREK_LOCAL_WORLD_SIZE:$TREK_ADDRESS $TREK_PORT "
        "$TREK_TOKEN\"");
    unsetenv("TREK_TOKEN");
    check_exit(&r, 0);
    expect(&r, "a:new::0/2:10.9.8.7 29500 what both know 12\n", 1);
    expect(&r, "a:new::1/2:10.9.8.7 29500 what both know 12\n", 1);
    expect(&r, "b:new::0/1:10.9.8.7 29500 what both know 12\n", 1);
}

/* Whatever is in them; and no secret is in what ps shows. */
static void test_arguments(void **state)
{
    run r;
    RUN(&r, NULL, "-H", "b:1", "--", "sh", "-c",
        "printf '<%s>' \"$@\"; tr '\\0' ' ' < /proc/$PPID/cmdline | grep -c \"$TREK_TOKEN\"", "name", "two  words", "", "a'b\"c",
        "new\nline",
        "$HOME `x` \\ *", "\xc3\xa9\xff");
    expect(&r, "<two  words><><a'b\"c><new\nline><$HOME `x` \\ *><\xc3\xa9\xff>0\n", 1);
}

static void test_folder(void **state)
{
    run r;
    char here[4096], line[4200];
    assert_non_null(getcwd(here, sizeof here));
    snprintf(line, sizeof line, "at %s.\n", here);
    RUN(&r, NULL, "-H", "a:1,localhost:1", "sh", "-c", "echo \"at $(pwd).\"");
    check_exit(&r, 0);
    expect(&r, line, 2);
    RUN(&r, NULL, "-H", "a:1,localhost:1", "-w", folder, "sh", "-c", "echo \"at $(pwd).\"");
    snprintf(line, sizeof line, "at %s.\n", folder);
    expect(&r, line, 2);
    RUN(&r, NULL, "-n", "1", "--wdir", folder, "sh", "-c", "echo \"at $(pwd).\"");
    expect(&r, line, 1);
    RUN(&r, NULL, "-H", "a:1", "-w", "/no/such/folder", "true");
    check_exit(&r, 1);
    expect(&r, "trek-run: a: /no/such/folder: No such file or directory\n", 1);
    RUN(&r, NULL, "-n", "1", "-w", "/no/such/folder", "true");
    check_exit(&r, 2);
    RUN(&r, NULL, "-H", "a:1,b:1", "-c", "900", "true");
    check_exit(&r, 1);
    expect(&r, "trek-run: a: 1 processes with 900 cores each: there are ", 1);
}

/* Rank 0 reads standard input, wherever it is, and whether it wants to or not. */
static void test_input(void **state)
{
    run r;
    RUN(&r, "one\ntwo\n", "-H", "a:2,b:1", "-p", "sh", "-c", "cat; echo end of $TREK_RANK");
    check_exit(&r, 0);
    expect(&r, "[0] one\n", 1);
    expect(&r, "[0] two\n", 1);
    expect(&r, "[0] end of 0\n", 1);
    expect(&r, "one", 1);
    expect(&r, "end of", 3);
    static char many[60000];
    memset(many, 'x', sizeof many - 1);
    RUN(&r, many, "-H", "a:1", "sh", "-c", "sleep 0.3; wc -c");
    expect(&r, "59999\n", 1);
    RUN(&r, many, "-H", "a:1", "true");
    check_exit(&r, 0);
    char command[4400], text[64];
    snprintf(command, sizeof command,
             "seq 1 400000 | %s -H a:1 sh -c 'sleep 0.3; md5sum' > %s/sum; seq 1 400000 | md5sum > %s/own", launched_program,
             folder, folder); /* more than is let out at once */
    assert_int_equal(system(command), 0);
    read_log(folder, "sum", command, sizeof command);
    read_log(folder, "own", text, sizeof text);
    assert_string_equal(command, text);
}

/* --- what comes back -------------------------------------------------------------------------------------- */

static void test_output(void **state)
{
    run r;
    RUN(&r, NULL, "-H", "a:2,b:2", "-p", "sh", "-c",
        "for k in 1 2 3 4 5 6 7 8; do printf 'a%.0s' 1 2 3; sleep 0.01; echo \"b$TREK_RANK\"; done; printf rest; echo err >&2");
    check_exit(&r, 0);
    expect(&r, "aaab", 32); /* never in the midst of another's */
    expect(&r, "rest\n", 4);
    for (int k = 0; k < 4; k++) {
        char line[32];
        snprintf(line, sizeof line, "[%d] aaab%d\n", k, k);
        expect(&r, line, 8);
        snprintf(line, sizeof line, "[%d] err\n", k);
        expect(&r, line, 1);
    }
    setenv("CLICOLOR_FORCE", "1", 1);
    RUN(&r, NULL, "-H", "a:1,b:1", "-p", "sh", "-c", "echo text");
    unsetenv("CLICOLOR_FORCE");
    expect(&r, "\x1b[36m[0]\x1b[0m text\n", 1);
    expect(&r, "\x1b[33m[1]\x1b[0m text\n", 1);
    RUN(&r, NULL, "-H", "a:1,noisy:1", "echo", "plain");
    check_exit(&r, 0);
    expect(&r, "plain\n", 2);
    expect(&r, "trek-run: noisy: Welcome\n", 1);
    expect(&r, "trek-run: noisy: no newline\n", 1);
}

/* More than any pipe holds, to a reader that is slow, and byte for byte to files. */
static void test_log_files(void **state)
{
    run r;
    char logs[96], *text = malloc(4 << 20);
    assert_non_null(text);
    snprintf(logs, sizeof logs, "%s/logs", folder);
    RUN(&r, NULL, "-H", "a:1,b:1", "-q", "-l", logs, "sh", "-c",
        "seq 1 400000; printf \"out\\000$TREK_RANK\"; echo err$TREK_RANK >&2");
    check_exit(&r, 0);
    assert_string_equal(r.text, "");
    size_t length = read_log(logs, "process-1.log", text, 4 << 20);
    assert_int_equal(length, 2688895 + 5);
    assert_memory_equal(text + length - 13, "\n400000\nout\0" "1", 13);
    read_log(logs, "process-0.err", text, 4 << 20);
    assert_string_equal(text, "err0\n");
    free(text);
    char command[4400];
    snprintf(command, sizeof command, "%s -H a:1,b:1 seq 1 400000 | (sleep 1; wc -l) > %s/lines", launched_program, folder);
    assert_int_equal(system(command), 0);
    read_log(folder, "lines", command, sizeof command);
    assert_int_equal(atoi(command), 800000);
}

static void test_status(void **state)
{
    run r;
    char script_text[256];
    RUN(&r, NULL, "-H", "a:2,b:1", "true");
    check_exit(&r, 0);
    RUN(&r, NULL, "-H", "a:2,b:1", "sh", "-c", "[ $TREK_RANK = 2 ] || { " AFTER_ENDS(1) "exit 5; }; exit 3");
    check_exit(&r, 3); /* the first's */
    expect(&r, "trek-run: rank 2 on b ended with status 3; the others have 10 s to end\n", 1);
    RUN(&r, NULL, "-H", "a:1,b:1", "sh", "-c", "[ $TREK_RANK = 1 ] && kill -SEGV $$; sleep 0.3");
    check_exit(&r, 128 + SIGSEGV);
    expect(&r, "rank 1 on b was ended by signal 11", 1);
    snprintf(script_text, sizeof script_text, "[ $TREK_RANK = 1 ] && exit 4; trap '' TERM; sleep %s & sleep %s; sleep 600",
             unique(0), unique(0));
    RUN(&r, NULL, "-H", "a:1,b:1,localhost:1", "-g", "0.2", "sh", "-c", script_text);
    check_exit(&r, 4);
    expect(&r, "ranks 0, 2 have not ended 0.2 s after rank 1: SIGTERM\n", 1);
    check_gone(unique(0));
    RUN(&r, NULL, "-H", "a:2,b:1", "/no/such/program");
    check_exit(&r, 127);
    expect(&r, ": cannot run '/no/such/program': No such file or directory\n", 1); /* whichever says so first */
    expect(&r, "ended with status", 0);
    RUN(&r, NULL, "-H", "a:1,b:1", "/etc/passwd");
    check_exit(&r, 126);
    snprintf(script_text, sizeof script_text, "(trap '' TERM; sleep %s) > /dev/null 2>&1 & exit 0", unique(1));
    RUN(&r, NULL, "-H", "a:2,b:1", "sh", "-c", script_text); /* what they leave behind */
    check_exit(&r, 0);
    check_gone(unique(1));
    RUN(&r, NULL, "-H", "a:1,b:1", "-m", "1", "-g", "0.1", "sh", "-c",
        "[ $TREK_RANK = 1 ] && kill -KILL $$; sleep 1; echo went on");
    check_exit(&r, 0);
    expect(&r, "rank 1 on b was ended by signal 9 (Killed); the others continue", 1);
    expect(&r, "went on", 1);
}

/* One that stands still on another machine is ended as one of this machine is. */
static void test_stopped(void **state)
{
    run r;
    RUN(&r, NULL, "-H", "a:1,b:1,localhost:1", "-m", "1", "-g", "0.3", "sh", "-c",
        "[ $TREK_RANK != 1 ] || kill -STOP $$; exit 0");
    check_exit(&r, 0);
    expect(&r, "trek-run: rank 1 has been stopped for 0.3 s, and the others have ended: SIGTERM\n", 1);
    RUN(&r, NULL, "-H", "a:1,b:1", "-g", "100", "sh", "-c",
        "[ $TREK_RANK = 1 ] && { (sleep 1; kill -CONT $$) & kill -STOP $$; wait; echo went on; }; exit 0");
    check_exit(&r, 0);
    expect(&r, "went on\n", 1);
}

/* Those who wait for the others of a job read of each that has ended, on every machine. */
static void test_deaths(void **state)
{
    run r;
    RUN(&r, NULL, "-H", "a:1,b:1,localhost:1", "-m", "1", "-p", "sh", "-c",
        "[ $TREK_RANK = 0 ] && exit 6; " AFTER_ENDS(1) "grep . /proc/self/fd/$TREK_LAUNCHER_FD | head -1");
    check_exit(&r, 0);
    expect(&r, "[1] 0 on a ended with status 6\n", 1);
    expect(&r, "[2] 0 on a ended with status 6\n", 1);
}

/* --- machines that are not reached, or lost ----------------------------------------------------------------- */

static void test_no_connection(void **state)
{
    run r;
    RUN(&r, NULL, "-H", "a:1,refuse:1", "sh", "-c", "echo it runs");
    check_exit(&r, 1);
    expect(&r, "trek-run: refuse: ssh: connect to host refuse port 22: Connection refused\n", 1);
    expect(&r, "trek-run: refuse: cannot connect (ssh ended with status 255)\n", 1);
    expect(&r, "it runs", 0);
    RUN(&r, NULL, "-H", "a:1,old:1", "sh", "-c", "echo it runs");
    check_exit(&r, 1);
    expect(&r, "trek-run: old: its trek-run is of another version (\"trek-run agent 0\"", 1);
    expect(&r, "trek-run: old: ?]0;title?\n", 1); /* nothing commands this terminal */
    expect(&r, "it runs", 0);
    RUN(&r, NULL, "-H", "a:1,babble:1", "sh", "-c", "echo it runs");
    check_exit(&r, 1);
    expect(&r, "trek-run: babble: the connection has ended (ssh was ended by signal 9)\n", 1);
    expect(&r, "it runs", 0);
    RUN(&r, NULL, "-H", "a:1", "--remote-trek-run", "/no/such's", "true");
    check_exit(&r, 1);
    expect(&r, "trek-run: a: '/no/such's' cannot be run there (ssh ended with status 127)", 1);
    char path[4096], *before = getenv("PATH"); /* the usual ssh lends the other machines neither keys nor a screen */
    snprintf(path, sizeof path, "%s/usual", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/usual/ssh", folder);
    FILE *usual = fopen(path, "w");
    assert_true(usual && fputs("#!/bin/sh\necho \"called: $*\" >&2; exit 255\n", usual) >= 0 && fclose(usual) == 0 &&
                chmod(path, 0700) == 0);
    snprintf(path, sizeof path, "%s/usual:%s", folder, before);
    before = strdup(before);
    setenv("PATH", path, 1);
    unsetenv("TREK_RUN_SSH");
    RUN(&r, NULL, "-H", "a:1", "true");
    setenv("PATH", before, 1);
    setenv("TREK_RUN_SSH", ssh, 1);
    free(before);
    check_exit(&r, 1);
    expect(&r, " -o ForwardAgent=no -o ForwardX11=no ", 1);
    RUN(&r, NULL, "-H", "a:1", "--ssh", "/no/such/ssh -v", "true");
    check_exit(&r, 1);
    expect(&r, "trek-run: a: '", 1);
    RUN(&r, NULL, "-H", "a:1,b:1", "--ssh", "f() { shift 3; \"$@\"; }; f -o 'two  words'", "true"); /* a shell reads it */
    check_exit(&r, 1);
    snprintf(path, sizeof path, "sleep %s #", unique(6));
    start(&r, (char *[]){ NULL, "-H", "a:1,b:1", "--ssh", path, "true", NULL }, NULL);
    while (processes_running(unique(6)) < 3) /* the launcher itself, too */
        sleep_ms(10);
    kill(r.pid, SIGINT); /* while there is no answer */
    finish(&r);
    check_exit(&r, 128 + SIGINT);
}

/* The number behind "parent-RANK=". */
static pid_t parent_of(run *r, int rank)
{
    char word[32];
    snprintf(word, sizeof word, "parent-%d=", rank);
    read_until(r, word);
    const char *at = strstr(r->text, word);
    while (at && !strchr(at, '\n')) {
        read_until(r, "\n");
        sleep_ms(20);
    }
    assert_non_null(at);
    return (pid_t)atoi(at + strlen(word));
}

static void test_agent_killed(void **state)
{
    run r;
    char script_text[160];
    snprintf(script_text, sizeof script_text, "echo parent-$TREK_RANK=$PPID.; exec sleep %s", unique(2));
    start(&r, (char *[]){ NULL, "-H", "a:1,b:2", "-g", "0.2", "sh", "-c", script_text, NULL }, NULL);
    pid_t agent = parent_of(&r, 1);
    parent_of(&r, 0);
    parent_of(&r, 2);
    kill(agent, SIGKILL);
    finish(&r);
    check_exit(&r, 128 + SIGKILL);
    expect(&r, "trek-run: b: the connection has ended (ssh ", 1);
    expect(&r, "trek-run: rank 1 on b was lost with its machine", 1);
    check_gone(unique(2));
}

/* A connection that breaks: the agent's processes end, and what they have started. */
static void test_connection_broken(void **state)
{
    run r;
    char text[200], path[128];
    write_file("cut",
               "#!/bin/sh\nhost=$1; shift\nmkfifo $0.$host\nexec 3<&0\nsh -c \"$*\" < $0.$host &\nagent=$!\n"
               "cat <&3 > $0.$host &\necho $! > $0.$host.pid\nwait $agent\n",
               path);
    assert_int_equal(chmod(path, 0700), 0);
    snprintf(text, sizeof text, "sleep %s & echo parent-$TREK_RANK=$PPID.; exec sleep %s", unique(3), unique(3));
    start(&r, (char *[]){ NULL, "-H", "a:1,b:1", "-g", "0.2", "--ssh", path, "sh", "-c", text, NULL }, NULL);
    parent_of(&r, 0);
    parent_of(&r, 1);
    assert_true(processes_running(unique(3)) >= 4);
    snprintf(text, sizeof text, "kill -KILL $(cat %s.b.pid)", path);
    assert_int_equal(system(text), 0);
    finish(&r);
    check_exit(&r, 128 + SIGKILL);
    assert_non_null(strstr(r.text, "rank 1 on b was ended by signal 9"));
    check_gone(unique(3));
}

static void test_killed_launcher(void **state)
{
    run r;
    char script_text[160];
    snprintf(script_text, sizeof script_text, "sleep %s & echo ready; exec sleep %s", unique(4), unique(4));
    start(&r, (char *[]){ NULL, "-H", "a:2,b:1", "sh", "-c", script_text, NULL }, NULL);
    while (count_of(r.text, "ready") < 3) {
        size_t used = strlen(r.text);
        ssize_t got = read(r.out, r.text + used, 100);
        assert_true(got > 0);
        r.text[used + (size_t)got] = '\0';
    }
    kill(r.pid, SIGKILL);
    finish(&r);
    assert_true(WIFSIGNALED(r.status));
    check_gone(unique(4));
}

static void read_count(run *r, const char *part, int count)
{
    while (count_of(r->text, part) < count) {
        size_t used = strlen(r->text);
        ssize_t got = read(r->out, r->text + used, 100);
        assert_true(got > 0 && used < 7000);
        r->text[used + (size_t)got] = '\0';
    }
}

static void test_signals(void **state)
{
    static const struct {
        int number;
        const char *name;
    } passed[] = { { SIGTERM, "TERM" }, { SIGINT, "INT" }, { SIGUSR1, "USR1" } };
    run r;
    char text[256];
    for (size_t k = 0; k < sizeof passed / sizeof *passed; k++) {
        snprintf(text, sizeof text, "trap 'echo got %s; exit 0' %s; echo ready; while :; do sleep 0.05; done", passed[k].name,
                 passed[k].name);
        start(&r, (char *[]){ NULL, "-H", "a:2,b:1,localhost:1", "sh", "-c", text, NULL }, NULL);
        read_count(&r, "ready", 4);
        kill(r.pid, passed[k].number);
        finish(&r);
        check_exit(&r, 0);
        snprintf(text, sizeof text, "got %s\n", passed[k].name);
        expect(&r, text, 4);
    }
    for (int here = 0; here < 2; here++) { /* the second Ctrl-C is meant */
        start(&r, (char *[]){ NULL, "-H", here ? "localhost:2" : "a:1,b:1", "sh", "-c",
                              "trap 'echo got it' INT; echo ready; while :; do sleep 0.05; done", NULL }, NULL);
        read_count(&r, "ready", 2);
        kill(r.pid, SIGINT);
        read_count(&r, "got it", 2);
        siginfo_t about = { 0 }; /* one that comes at once is the same that a terminal sends to all */
        while (waitid(P_PID, (id_t)r.pid, &about, WEXITED | WNOHANG | WNOWAIT) == 0 && about.si_pid == 0) {
            sleep_ms(100);
            kill(r.pid, SIGINT);
        }
        finish(&r);
        check_exit(&r, 128 + SIGKILL);
        expect(&r, "trek-run: SIGINT has come again: SIGKILL\n", 1);
    }
}

/* --- started again -------------------------------------------------------------------------------------------- */

static void test_restarts(void **state)
{
    run r;
    char logs[96], text[256];
    RUN(&r, NULL, "-H", "a:1,b:1", "-m", "1", "-r", "2", "-p", "sh", "-c",
        "[ $TREK_RANK = 0 ] && { " AFTER_ENDS(3) "exit 0; }; echo on $HOST join=$TREK_JOIN.; kill -KILL $$");
    check_exit(&r, 0);
    expect(&r, "[1] on b join=.\n", 1);
    expect(&r, "[1] on b join=1.\n", 2);
    expect(&r, "rank 1 on b was ended by signal 9 (Killed); it is started again (2 of 2)", 1);
    snprintf(logs, sizeof logs, "%s/again", folder); /* its agent, its connection */
    start(&r,
          (char *[]){ NULL, "-H", "a:1,b:1", "-m", "1", "-r", "1", "-l", logs, "sh", "-c",
                      "[ $TREK_RANK = 0 ] && { " AFTER_ENDS(
                          2) "exit 0; }; echo \"join=$TREK_JOIN. parent-1=$PPID.\"; [ $TREK_JOIN ] || sleep 600",
                      NULL },
          NULL);
    kill(parent_of(&r, 1), SIGKILL);
    finish(&r);
    check_exit(&r, 0);
    expect(&r, "trek-run: b: the connection has ended", 1);
    expect(&r, "trek-run: rank 1 on b was lost with its machine; it is started again (1 of 1)\n", 1);
    expect(&r, "join=1.", 1);
    read_log(logs, "process-1.1.log", text, sizeof text);
    assert_non_null(strstr(text, "join=1."));
}

/* A machine that does not come back uses the restarts up, and what waits for it ends with the others. */
static void test_machine_gone(void **state)
{
    run r;
    char path[128], command[160];
    write_file("gone",
               "#!/bin/sh\nhost=$1; shift\n[ -e $0.$host ] && exit 255\n[ $host = b ] && touch $0.$host\nexec sh -c \"$*\"\n",
               path);
    assert_int_equal(chmod(path, 0700), 0);
    start(&r,
          (char *[]){
              NULL, "-H", "a:1,b:1", "-m", "1", "-r", "5", "--ssh", path, "sh", "-c",
              "echo \"parent-$TREK_RANK=$PPID.\"; until grep -q reached /proc/self/fd/$TREK_LAUNCHER_FD; do sleep 0.01; done",
              NULL },
          NULL);
    kill(parent_of(&r, 1), SIGKILL);
    finish(&r);
    check_exit(&r, 0);
    assert_true(count_of(r.text, "trek-run: b: cannot connect (ssh ended with status 255)\n") >= 1);
    assert_true(count_of(r.text, "trek-run: rank 1 on b was not reached again; ") >= 1);
    snprintf(command, sizeof command, "rm %s.b", path);
    assert_int_equal(system(command), 0);
}

/* --- training -------------------------------------------------------------------------------------------------- */

static trek_status on_epoch(trek_graph *graph, int64_t epoch, void *elastic)
{
    const char *join = getenv("TREK_JOIN"), *rank = getenv("TREK_RANK");
    if (!elastic)
        return TREK_OK;
    if (join)
        printf("joined at %d\n", (int)epoch);
    fflush(stdout);
    if (!join && rank && atoi(rank) == 1 && epoch == 1)
        kill(getpid(), SIGKILL);
    sleep_ms(150);
    return TREK_OK;
}

/* A process of a job: the first says what it has learned. */
static int train(bool elastic)
{
    trek_monitor *none = NULL;
    trek_monitor_free(&none); /* who calls something of monitors is watched where TREK_LOG_DIR says so */
    trek_dataset *data = line_dataset(true);
    const trek_run_opts opts = { .build_model = line_build, .train_step = line_squares, .dataset = data, .input = "x",
                                 .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.05 }), .batch_size = 12, .shuffle = true,
                                 .epochs = elastic ? 20 : 3, .seed = 5,
                                 .min_processes = elastic, .on_epoch = on_epoch, .arg = elastic ? &data : NULL,
                                 .trainer = { .ranks = 1 } };
    trek_run *run = trek_trainer_run(&opts);
    trek_dataset_free(&data);
    trek_epoch_metrics m;
    while (run && trek_run_next(run, &m))
        ;
    trek_state *state = run ? trek_run_join(run) : NULL;
    if (!state)
        fprintf(stderr, "%s\n", trek_error());
    const double *w = state ? trek_tensor_data(trek_state_tensor(state, 0)) : NULL;
    const char *rank = getenv("TREK_RANK");
    if (w && (!rank || atoi(rank) == 0))
        printf("weights %a %a %a\n", w[0], w[1], w[2]);
    trek_state_free(&state);
    return w == NULL;
}

static void weights_of(const run *r, char line[200])
{
    const char *at = strstr(r->text, "weights ");
    if (!at)
        print_error("%s\n", r->text);
    assert_non_null(at);
    snprintf(line, 200, "%.*s", (int)strcspn(at, "\n"), at);
}

static void test_training(void **state)
{
    run r;
    char here[200], there[200];
    RUN(&r, NULL, "-n", "3", self, "--train");
    check_exit(&r, 0);
    weights_of(&r, here);
    RUN(&r, NULL, "-H", "a:2,b:1", self, "--train");
    check_exit(&r, 0);
    weights_of(&r, there);
    assert_string_equal(here, there);
    RUN(&r, NULL, "-H", "localhost:1,b:2", self, "--train");
    check_exit(&r, 0);
    weights_of(&r, there);
    assert_string_equal(here, there);
}

/* One that died on another machine comes back there, and joins. */
static void test_joining(void **state)
{
    run r;
    RUN(&r, NULL, "-H", "a:1,b:1", "-m", "1", "-r", "1", self, "--elastic");
    check_exit(&r, 0);
    expect(&r, "rank 1 on b was ended by signal 9 (Killed); it is started again (1 of 1)", 1);
    expect(&r, "weights ", 1);
    assert_true(count_of(r.text, "joined at ") >= 1);
}

/* All processes of a job write into the folder of one run, which says that they are three. */
static void check_one_run(const char *logs, run *r)
{
    trek_run_entry *entries;
    int n;
    check_exit(r, 0);
    assert_int_equal(trek_runs_list(logs, &entries, &n), TREK_OK);
    assert_int_equal(n, 1);
    assert_int_equal(entries[0].files, 3);
    assert_non_null(strstr(entries[0].name, "test_trek_run_hosts-20"));
    trek_run_reader *reader = trek_run_reader_new(entries[0].path, NULL);
    assert_non_null(reader);
    assert_int_equal(trek_run_reader_catch_up(reader), TREK_OK);
    const trek_run_state *s = trek_run_reader_state(reader);
    assert_int_equal(s->bad_lines, 0);
    assert_int_equal(s->n_processes, 3);
    assert_int_equal(s->n_ranks, 3);
    assert_int_equal(s->status, TREK_RUN_DONE);
    trek_run_reader_free(&reader);
    trek_runs_free(&entries, n);
}

static void test_one_run(void **state)
{
    run r;
    char logs[96];
    snprintf(logs, sizeof logs, "%s/one", folder);
    setenv("TREK_LOG_DIR", logs, 1);
    RUN(&r, NULL, "-n", "3", self, "--train");
    check_one_run(logs, &r);
    snprintf(logs, sizeof logs, "%s/other", folder);
    setenv("TREK_LOG_DIR", logs, 1);
    RUN(&r, NULL, "-H", "a:1,b:1,localhost:1", self, "--train");
    check_one_run(logs, &r);
    unsetenv("TREK_LOG_DIR");
}

/* --- where the others reach the first --------------------------------------------------------------------------- */

static void test_addresses(void **state)
{
    run r;
    if (system("unshare -rn true 2> /dev/null") != 0) {
        print_message("skipped: no networks of their own here\n");
        return;
    }
    setenv("APART", "10.0.0.9 4000 10.0.0.1 22", 1);
    RUN(&r, NULL, "-H", "apart-1:1,apart-2:1", "sh", "-c", "echo at $TREK_ADDRESS.");
    check_exit(&r, 0);
    expect(&r, "at 10.0.0.1.\n", 2);
    RUN(&r, NULL, "-H", "localhost:1,apart-2:1", "sh", "-c", "echo at $TREK_ADDRESS.");
    expect(&r, "at 10.0.0.9.\n", 2);
    setenv("APART", "127.0.0.1 4000 127.0.0.1 22", 1); /* a tunnel */
    RUN(&r, NULL, "-H", "apart-1:1,apart-2:1", "sh", "-c", "echo it runs");
    check_exit(&r, 1);
    expect(&r, "trek-run: the other machines cannot reach apart-1 at the address that ssh has taken: --address names another\n",
           1);
    expect(&r, "it runs", 0);
    RUN(&r, NULL, "-H", "apart-1:1,apart-2:1", "--address", "there", "sh", "-c", "echo at $TREK_ADDRESS.");
    expect(&r, "at there.\n", 2);
    setenv("APART", "", 1); /* something else than ssh */
    RUN(&r, NULL, "-H", "me@apart-1:1,apart-2:1", "sh", "-c", "echo at $TREK_ADDRESS.");
    expect(&r, "at apart-1.\n", 2);
    RUN(&r, NULL, "-H", "apart-1:1,apart-2:1", "sh", "-c", "echo at $TREK_ADDRESS.");
    expect(&r, "at apart-1.\n", 2);
    unsetenv("APART");
}

/* --- the real ssh ---------------------------------------------------------------------------------------------- */

static void test_sshd(void **state)
{
    run r;
    char text[2048], command[3000], here[200], there[200];
    snprintf(
        text, sizeof text,
        "cd %s && sshd=$(PATH=$PATH:/usr/sbin command -v sshd) && command -v ssh-keygen > /dev/null || exit 77\n"
        "[ $(id -u) != 0 ] || mkdir -p /run/sshd\n"
        "ssh-keygen -q -t ed25519 -N '' -f host && ssh-keygen -q -t ed25519 -N '' -f user && cp user.pub keys || exit 77\n"
        "for port in 42022 42122 42222; do\n"
        "printf 'Port %%s\\nListenAddress 127.0.0.2\\nListenAddress 127.0.0.3\\nHostKey %%s/host\\nAuthorizedKeysFile "
        "%%s/keys\\nStrictModes no\\nUsePAM no\\n"
        "PidFile %%s/pid\\n' $port $PWD $PWD $PWD > config\n"
        "$sshd -f $PWD/config -E $PWD/log || continue\n"
        "echo \"ssh -F none -p $port -i $PWD/user -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
        "-o LogLevel=ERROR\" > command\n"
        "for k in $(seq 1000); do [ -s pid ] && break; sleep 0.02; done\n"
        "eval \"$(cat command)\" 127.0.0.2 true < /dev/null && exit 0\n"
        "kill $(cat pid); exit 77\n"
        "done; exit 77\n",
        folder);
    int made = system(text);
    if (made != 0) {
        print_message("skipped: no sshd can be used here\n");
        return;
    }
    size_t length = read_log(folder, "command", command, sizeof command);
    command[length - 1] = '\0';
    setenv("TREK_RUN_SSH", command, 1);
    RUN(&r, "typed\n", "-H", "127.0.0.2:2,127.0.0.3:1", "-p", "sh", "-c",
        "cat; echo \"$TREK_RANK of $TREK_WORLD_SIZE at $TREK_ADDRESS, by ${SSH_CONNECTION%% *} with <$0>\"", "a  'b'\n$c");
    check_exit(&r, 0);
    expect(&r, "[0] typed\n", 1);
    expect(&r, " of 3 at 127.0.0.1, by 127.0.0.", 3);
    RUN(&r, NULL, "-n", "2", self, "--train");
    weights_of(&r, here);
    RUN(&r, NULL, "-H", "127.0.0.2:1,127.0.0.3:1", self, "--train");
    check_exit(&r, 0);
    weights_of(&r, there);
    assert_string_equal(here, there);
    snprintf(text, sizeof text, "echo ready; exec sleep %s", unique(5));
    for (int number = 0; number < 2; number++) {
        start(&r, (char *[]){ NULL, "-H", "127.0.0.2:2,127.0.0.3:1", "sh", "-c", text, NULL }, NULL);
        read_count(&r, "ready", 3);
        kill(r.pid, number ? SIGKILL : SIGTERM);
        finish(&r);
        check_gone(unique(5));
    }
    RUN(&r, NULL, "-H", "127.0.0.2:1", "--ssh", "ssh -F none -p 1 -o BatchMode=yes", "true");
    check_exit(&r, 1);
    expect(&r, "trek-run: 127.0.0.2: cannot connect (ssh ended with status 255)", 1);
    setenv("TREK_RUN_SSH", ssh, 1);
    snprintf(text, sizeof text, "kill $(cat %s/pid)", folder);
    assert_int_equal(system(text), 0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && (strcmp(argv[1], "--train") == 0 || strcmp(argv[1], "--elastic") == 0))
        return train(strcmp(argv[1], "--elastic") == 0);
    launched_find();
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 1;
    unsetenv("TREK_LOG_DIR");
    unsetenv("TREK_RUN_NAME");
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(test_places), TEST(test_wrong_places), TEST(test_environment), TEST(test_join), TEST(test_arguments),
            TEST(test_folder),
        TEST(test_input), TEST(test_output), TEST(test_log_files), TEST(test_status), TEST(test_deaths), TEST(test_stopped),
        TEST(test_no_connection),
        TEST(test_agent_killed), TEST(test_connection_broken), TEST(test_killed_launcher), TEST(test_signals),
        TEST(test_restarts), TEST(test_machine_gone), TEST(test_training), TEST(test_joining), TEST(test_one_run),
        TEST(test_addresses), TEST(test_sshd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
