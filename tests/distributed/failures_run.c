/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs under trek-run, several at a time. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tensor/status.h"
#include "tests/distributed/failures.h"
#include "tests/support/unit.h"

static const char *const act_names[] = { "nothing", "kill -9", "SIGSTOP",        "exit(0)",        "other count", "error",
                                         "silent",  "busy",    "SIGTERM to all", "SIGTERM to one", "fork" };

static const char *const place_names[] = { "nowhere", "join",    "setup",      "first step", "loss", "backward",     "in step",
                                           "save",    "in save", "evaluation", "exit",       "end",  "the beginning" };

static const char *const mode_names[] = { "per rank", "gathered", "windows",  "synchronised batch norm",
                                          "large",    "in parts", "by owners" };
const char *self, *launcher;
char word[64];
uint64_t references[2][MOST_PROCESSES + 1][3][MODES][STEPS + 1];
uint64_t long_reference[2][MOST_PROCESSES + 1][LONGEST + 1];

/* For sanitizers. */
static void add_option(const char *name, const char *option)
{
    char text[512];
    const char *before = getenv(name);
    snprintf(text, sizeof text, "%s%s%s", before ? before : "", before ? ":" : "", option);
    setenv(name, text, 1);
}

static void start(running *r, const scenario *s)
{
    char text[128], processes[16], path[128];
    memset(r, 0, sizeof *r);
    r->of = s;
    snprintf(r->folder, sizeof r->folder, "/tmp/trek-failures-XXXXXX");
    assert_non_null(mkdtemp(r->folder));
    r->job = map_job(r->folder, true);
    assert_non_null(r->job);
    snprintf(text, sizeof text, "%d,%d,%d,%d,%d,%d,%d,%d,%u", s->gloo, s->processes, s->ranks, s->victim, s->act, s->place,
             s->mode, s->delays, s->seed);
    snprintf(processes, sizeof processes, "%d", s->processes);
    snprintf(path, sizeof path, "%s/output", r->folder);
    r->start = now();
    fflush(NULL);
    r->pid = fork();
    if (r->pid != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int file = open(path, O_RDWR | O_CREAT | O_APPEND, 0600);
    dup2(file, 1);
    dup2(file, 2);
    setenv("TREK_TEST_CHILD", text, 1);
    setenv("TREK_TEST_FILE", r->folder, 1);
    setenv("TREK_THREADS", "1", 1);
    if (s->act == EXIT) { /* who exits in the middle leaves everything as it is */
        add_option("ASAN_OPTIONS", "detect_leaks=0");
        add_option("TSAN_OPTIONS", "report_thread_leaks=0");
    }
    execl(launcher, launcher, "-n", processes, "-g", "60", self, word, (char *)NULL);
    _exit(127);
}

static void collect(running *r, int status)
{
    char path[128];
    r->pid = 0;
    r->code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    snprintf(path, sizeof path, "%s/output", r->folder);
    int file = open(path, O_RDONLY);
    ssize_t got = file >= 0 ? read(file, r->text, sizeof r->text - 1) : 0;
    r->text[got > 0 ? got : 0] = '\0';
    if (file >= 0)
        close(file);
}

/* SIGTERM at a random moment of the training. */
static void send_signal(running *r)
{
    const scenario *s = r->of;
    if ((s->act != TERM && s->act != TERM_ONE) || r->signalled || atomic_load(&r->job->training) < s->processes)
        return;
    uint32_t state = s->seed;
    if (r->signal_at == 0)
        r->signal_at = now() + random_number(&state) % 60000 * 1e-6;
    if (now() < r->signal_at)
        return;
    r->signalled = true;
    kill(s->act == TERM ? r->pid : r->job->of[s->victim].pid, SIGTERM);
}

/* One that has stopped is killed when the launcher has reaped the others: they have ended by themselves. */
static void end_stopped(const running *r)
{
    const scenario *s = r->of;
    bool alone = s->act == STOP && r->job->of[s->victim].pid != 0;
    for (int p = 0; p < s->processes && alone; p++)
        alone = p == s->victim || (r->job->of[p].pid != 0 && kill(r->job->of[p].pid, 0) != 0);
    if (alone)
        kill(r->job->of[s->victim].pid, SIGKILL);
}

static void clean(running *r)
{
    DIR *list = opendir(r->folder);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", r->folder, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(path);
    }
    if (list)
        closedir(list);
    rmdir(r->folder);
    if (r->job)
        munmap(r->job, sizeof *r->job);
    r->job = NULL;
}

int run_all(const scenario *list, int n, int at_once, bool (*look)(running *r))
{
    static running slots[AT_ONCE];
    int next = 0, wrong = 0, busy = 0;
    memset(slots, 0, sizeof slots);
    while (next < n || busy > 0) {
        for (int k = 0; k < at_once; k++) {
            running *r = &slots[k];
            int status;
            if (r->pid == 0 && next < n) {
                start(r, &list[next++]);
                busy++;
            }
            if (r->pid == 0)
                continue;
            send_signal(r);
            end_stopped(r);
            if (now() - r->start > 150)
                kill(r->pid, SIGKILL);
            if (waitpid(r->pid, &status, WNOHANG) != r->pid)
                continue;
            collect(r, status);
            busy--;
            if (!look(r)) {
                const scenario *s = r->of;
                wrong++;
                print_error("%s in %s: %s, %d processes of %d ranks, %s, victim %d, delays %d, seed %u; status %d after %.1f s; "
                            "it wrote:\n%s\n",
                            act_names[s->act], place_names[s->place], s->gloo ? "gloo" : "shared", s->processes, s->ranks,
                            mode_names[s->mode], s->victim, s->delays, s->seed, r->code, now() - r->start, r->text);
            }
            clean(r);
        }
        pause_us(2000);
    }
    return wrong;
}

bool say_wrong(const running *r, int process, const char *what)
{
    const record *p = &r->job->of[process < 0 ? 0 : process];
    print_error("ERROR: process %d: %s (steps %d, status %d, \"%s\")\n", process, what, p->steps, p->status, p->error);
    return false;
}
