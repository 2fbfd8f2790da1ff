/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators between two machines, which are name spaces of the network that a link joins: the link is cut, or slow. */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "distributed/comm/gloo/gloo.h"
#include "tests/distributed/comm/exchanged.h"
#include "tests/support/processes.h"
#include "tests/support/unit.h"

/* 16 MiB with a deadline of 4 s, and small calls. */
static int play_slow(const part *me)
{
    trek_comm *comm = exchanged_join(me, processes_engine(), 60);
    bool good = comm && trek_comm_set_deadline(comm, 4) == TREK_OK;
    good = good && exchanged_in_order(comm, 4 << 20) && exchanged_reduces(comm, 100);
    trek_comm_free(&comm);
    printf("%s %s\n", good ? "good" : "bad", trek_error());
    return good ? 0 : 1;
}

static const processes_role roles[] = { { "large", exchanged_play_large }, { "slow", play_slow } };

/* --- machines ----------------------------------------------------------------------------------------------------- */

/* A process that only holds name spaces open, of a network and of a host's name; its id, or 0 where that is not allowed. */
static pid_t hold_network(const char *name, int *file)
{
    int ready[2];
    if (pipe(ready) != 0)
        return 0;
    pid_t holder = fork();
    if (holder == 0) {
        char good = unshare(CLONE_NEWNET | CLONE_NEWUTS) == 0 && sethostname(name, strlen(name)) == 0;
        ssize_t told = write(ready[1], &good, 1);
        alarm(200);
        while (told == 1 && good)
            pause();
        _exit(0);
    }
    char good = 0, path[64];
    ssize_t got = read(ready[0], &good, 1);
    close(ready[0]);
    close(ready[1]);
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)holder);
    *file = got == 1 && good ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (*file >= 0)
        return holder;
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    return 0;
}

/* Runs a command of ip in the holder's name space (0: this one). */
static bool ip(pid_t holder, const char *format, ...)
{
    char arguments[256], command[400];
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    if (holder)
        snprintf(command, sizeof command, "nsenter -t %d -n ip %s 2>/dev/null", (int)holder, arguments);
    else
        snprintf(command, sizeof command, "ip %s 2>/dev/null", arguments);
    return system(command) == 0;
}

static bool join_networks(const pid_t *holders)
{
    bool good = ip(0, "link add trek0 netns %d type veth peer name trek1 netns %d", (int)holders[0], (int)holders[1]);
    for (int k = 0; k < 2; k++)
        good = good && ip(holders[k], "addr add 10.91.7.%d/24 dev trek%d", k + 1, k) && ip(holders[k], "link set trek%d up", k) &&
               ip(holders[k], "link set lo up");
    return good;
}

/* Two machines with a network of their own each, which a link joins. */
typedef struct machines {
    pid_t holders[2];
    int files[2];
    int names;       /* file of the first one's name, where mpirun is started */
    char folder[64]; /* of what is started by mpirun; "": none */
} machines;

/* All that run on a machine: a daemon of Open MPI whose link is cut would wait. */
static void end_all_on(const machines *m, int k)
{
    struct stat own, other;
    char path[300];
    DIR *folder = opendir("/proc");
    for (struct dirent *entry; folder && fstat(m->files[k], &own) == 0 && (entry = readdir(folder));) {
        pid_t pid = (pid_t)atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/%s/ns/net", entry->d_name);
        if (pid > 1 && pid != m->holders[k] && stat(path, &other) == 0 && other.st_ino == own.st_ino &&
            other.st_dev == own.st_dev)
            kill(pid, SIGKILL);
    }
    if (folder)
        closedir(folder);
}

static void release_machines(machines *m)
{
    char command[100];
    for (int k = 0; k < 2; k++)
        if (m->folder[0] && m->files[k] >= 0)
            end_all_on(m, k);
    if (m->folder[0]) {
        snprintf(command, sizeof command, "rm -rf '%s'", m->folder);
        if (system(command) != 0)
            fprintf(stderr, "%s is left\n", m->folder);
    }
    for (int k = 0; k < 2; k++) {
        if (m->files[k] >= 0)
            close(m->files[k]);
        if (m->holders[k]) {
            kill(m->holders[k], SIGKILL);
            waitpid(m->holders[k], NULL, 0);
        }
    }
}

/* False, and why is printed, where the engine or the system does not allow it. */
static bool make_machines(machines *m)
{
    *m = (machines){ .files = { -1, -1 } };
    for (int k = 0; k < 2; k++)
        m->holders[k] = hold_network(k ? "trek-b" : "trek-a", &m->files[k]);
    if (m->holders[0] && m->holders[1] && join_networks(m->holders))
        return true;
    release_machines(m);
    fprintf(stderr, "skipped: this system does not let the test make network name spaces\n");
    return false;
}

/* By the mpirun of the first machine, which reaches the other one by a script instead of ssh. Open MPI is kept to the link. */
static void exec_mpirun(const machines *m, const world *w)
{
    char hosts[64], agent[100], program[512], number[16];
    snprintf(hosts, sizeof hosts, "10.91.7.1:1,10.91.7.2:%d", w->n - 1);
    snprintf(number, sizeof number, "%d", w->n);
    snprintf(agent, sizeof agent, "%s/agent", m->folder);
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_plm_rsh_agent", agent, 1);
    setenv("OMPI_MCA_orte_tmpdir_base", m->folder, 1);
    setenv("OMPI_MCA_oob_tcp_if_include", "10.91.7.0/24", 1);
    setenv("OMPI_MCA_btl_tcp_if_include", "10.91.7.0/24", 1);
    setenv("OMPI_MCA_btl", "tcp,self", 1);
    setenv("OMPI_MCA_pml", "ob1", 1);
    setenv("TREK_TEST_OUTPUT", m->folder, 1);
    if (setns(m->files[0], CLONE_NEWNET) == 0 && setns(m->names, CLONE_NEWUTS) == 0)
        execlp("mpirun", "mpirun", "-n", number, "--host", hosts, "-x", "TREK_TEST_ROLE", "-x", "TREK_TEST_PART", "-x",
               "TREK_TEST_OUTPUT", "-x", "TREK_TEST_ENGINE", "-x", "TREK_PLUGIN_PATH", program, (char *)NULL);
    _exit(124);
}

static bool write_agent(const machines *m)
{
    char path[100];
    snprintf(path, sizeof path, "%s/agent", m->folder);
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    fprintf(file, "#!/bin/sh\nshift\nexec nsenter -t %d -n -u sh -c \"$*\"\n", (int)m->holders[1]);
    return fclose(file) == 0 && chmod(path, 0700) == 0;
}

static void start_by_mpirun(machines *m, world *w, const char *role, const char *detail)
{
    char words[512], path[100];
    snprintf(m->folder, sizeof m->folder, "/tmp/trek-machines-XXXXXX");
    if (!mkdtemp(m->folder) || !write_agent(m)) {
        perror(m->folder);
        fail();
    }
    for (int p = 0; p < w->n; p++) {
        snprintf(path, sizeof path, "%s/out.%d", m->folder, p);
        w->file[p] = fopen(path, "w+");
    }
    snprintf(words, sizeof words, "mpi %d %d %s %s", w->n, w->port, w->address, *detail ? detail : "-");
    snprintf(path, sizeof path, "/proc/%d/ns/uts", (int)m->holders[0]);
    fflush(NULL);
    w->pid[0] = fork();
    if (w->pid[0] != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("TREK_TEST_ROLE", role, 1);
    setenv("TREK_TEST_PART", words, 1);
    m->names = open(path, O_RDONLY | O_CLOEXEC);
    exec_mpirun(m, w);
}

/* Waits until all that mpirun has started have said how they ended: mpirun itself may be cut off from a part of them. */
static void finish_by_mpirun(world *w)
{
    double end = processes_now() + 150;
    for (int left = w->n; left > 0 && processes_now() < end; processes_pause(20)) {
        left = 0;
        for (int p = 0; p < w->n; p++) {
            ssize_t got = pread(fileno(w->file[p]), w->text[p], OUTPUT - 1, 0);
            w->text[p][got > 0 ? got : 0] = '\0';
            const char *last = strstr(w->text[p], "code ");
            double at = 0;
            w->code[p] = -1000;
            left += !last || sscanf(last, "code %d at %lf", &w->code[p], &at) != 2;
            w->seconds[p] = at - w->start;
        }
    }
    kill(w->pid[0], SIGKILL);
    waitpid(w->pid[0], NULL, 0);
    w->pid[0] = 0;
    for (int p = 0; p < w->n; p++)
        fclose(w->file[p]);
}

/* Process 0 on one machine, the others on the other. */
static void start_on(machines *m, world *w, int n, const char *role, const char *detail)
{
    processes_init(w, n);
    w->address = "10.91.7.1";
    if (strcmp(processes_engine(), "mpi") == 0) {
        start_by_mpirun(m, w, role, detail);
        return;
    }
    for (int p = 0; p < n; p++) {
        w->net[p] = m->files[p > 0];
        processes_start(w, p, role, detail);
    }
}

static void finish_on(world *w)
{
    if (strcmp(processes_engine(), "mpi") == 0)
        finish_by_mpirun(w);
    else
        processes_finish(w, -1);
}

/* The link between them is cut in the midst of a reduction. */
static void test_cut_link(void **state)
{
    machines m;
    if (!make_machines(&m))
        skip();
    static world w;
    start_on(&m, &w, 3, "large", "machines");
    while (!processes_wrote(&w, 2, "begun"))
        processes_pause(20);
    processes_pause(30);
    ip(m.holders[1], "link set trek1 down");
    finish_on(&w);
    release_machines(&m);
    for (int p = 0; p < 3; p++) {
        WANT(&w, w.code[p] == 1 && strstr(w.text[p], "TREK_ERR_PEER: process"));
        WANT(&w, strstr(w.text[p], "cannot be reached") || strstr(w.text[p], "has not been heard of"));
        WANT(&w,
             strstr(w.text[p], p ? "PEER: process 0" : "PEER: process 1") || (p == 0 && strstr(w.text[p], "PEER: process 2")));
    }
}

/* 30 Mbit/s: a reduction takes several times the deadline, but its pieces do not. */
static void test_slow_link(void **state)
{
    machines m;
    if (!make_machines(&m))
        skip();
    char command[200];
    bool slow = true;
    for (int k = 0; k < 2; k++) {
        snprintf(command, sizeof command,
                 "nsenter -t %d -n tc qdisc add dev trek%d root tbf rate 30mbit burst 32kbit latency 400ms 2>/dev/null",
                 (int)m.holders[k], k);
        slow = slow && system(command) == 0;
    }
    static world w;
    if (slow) {
        start_on(&m, &w, 3, "slow", "");
        finish_on(&w);
    }
    release_machines(&m);
    if (!slow) {
        fprintf(stderr, "skipped: this system does not let the test slow a link down (tc)\n");
        skip();
    }
    for (int p = 0; p < 3; p++)
        WANT(&w, w.code[p] == 0 && strstr(w.text[p], "good") && w.seconds[p] > 5);
}

int main(void)
{
    part me;
    setenv("TREK_TEST_ENGINE", "gloo", 0); /* shared memory does not join machines */
    if (processes_part(&me)) {
        int code = processes_play(&me, roles, sizeof roles / sizeof *roles);
        if (getenv("TREK_TEST_OUTPUT"))
            printf("code %d at %.3f\n", code, processes_now());
        return code;
    }
    char why[256] = "there is no mpirun";
    bool by_mpi = strcmp(processes_engine(), "mpi") == 0;
    if (by_mpi ? system("command -v mpirun >/dev/null") != 0 : !trek_comm_gloo_there(why, sizeof why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    alarm(600);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_cut_link), cmocka_unit_test(test_slow_link) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
