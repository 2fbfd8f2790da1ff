/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/tools/launched.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

char launched_program[4096];

void sleep_ms(int ms) { nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000L }, NULL); }

void start(run *r, char **argv, const char *input)
{
    int out[2], in[2];
    argv[0] = launched_program;
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    r->pid = fork();
    if (r->pid == 0) {
        alarm(150);
        signal(SIGINT, SIG_DFL); /* a shell's background job and nohup ignore them, and so would the ranks' shells */
        signal(SIGHUP, SIG_DFL);
        signal(SIGQUIT, SIG_DFL);
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(out[1], 2);
        execv(launched_program, argv);
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

void read_until(run *r, const char *part)
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

void finish(run *r)
{
    read_until(r, NULL);
    close(r->out);
    waitpid(r->pid, &r->status, 0);
}

void check_exit(const run *r, int code)
{
    if (!WIFEXITED(r->status) || WEXITSTATUS(r->status) != code)
        print_error("status %x, expected exit %d; it wrote:\n%s\n", (unsigned)r->status, code, r->text);
    assert_true(WIFEXITED(r->status));
    assert_int_equal(WEXITSTATUS(r->status), code);
}

int count_of(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        count++;
    return count;
}

void check_gone(const char *word)
{
    for (double since = 0; processes_running(word) > 0 && test_wait(&since);)
        sleep_ms(20); /* it is looked at all processes */
    assert_int_equal(processes_running(word), 0);
}

const char *unique(int k)
{
    static char text[8][32];
    snprintf(text[k], sizeof text[k], "600.%d%d", (int)getpid(), k);
    return text[k];
}

size_t read_log(const char *folder, const char *name, char *to, size_t size)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("%s: %s", path, strerror(errno));
    size_t length = fread(to, 1, size - 1, file);
    to[length] = '\0';
    fclose(file);
    return length;
}

void launched_find(void)
{
    snprintf(launched_program, sizeof launched_program, "%s", processes_built("tools/trek-run"));
}
