/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds of real processes: fork, exec of this very program, wait with a limit. */
#include "tests/support/processes.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/unit.h"

enum { HANGS_S = 150 };

double processes_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The number is MPI's; what is written goes to a file and not through mpirun, whose network may be cut. */
static void begin_under_mpirun(char *process, size_t size)
{
    char path[512];
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *folder = getenv("TREK_TEST_OUTPUT");
    snprintf(process, size, "%s", rank ? rank : "?");
    snprintf(path, sizeof path, "%s/out.%s", folder ? folder : "", process);
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
        _exit(123);
}

bool processes_part(part *out)
{
    const char *role = getenv("TREK_TEST_ROLE");
    if (!role)
        return false;
    static char words[5][256];
    sscanf(getenv("TREK_TEST_PART"), "%255s %255s %255s %255s %255s", words[0], words[1], words[2], words[3], words[4]);
    if (strcmp(words[0], "mpi") == 0)
        begin_under_mpirun(words[0], sizeof words[0]);
    *out = (part){ .role = role,
                   .process = atoi(words[0]),
                   .processes = atoi(words[1]),
                   .port = atoi(words[2]),
                   .address = words[3],
                   .detail = strcmp(words[4], "-") == 0 ? "" : words[4] };
    setvbuf(stdout, NULL, _IOLBF, 0);
    sigset_t go;
    sigemptyset(&go);
    sigaddset(&go, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &go, NULL); /* until somebody waits for it */
    alarm(HANGS_S + 10);
    return true;
}

/* Whether this program may use the port, as long as it runs: test programs run side by side. The name is free when it ends. */
static bool reserve(int port)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "trek-test-port-%d", port);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&name,
                        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)) == 0) {
        static int held[64], next; /* the oldest worlds have ended */
        if (held[next])
            close(held[next]);
        held[next] = fd;
        next = (next + 1) % 64;
        return true;
    }
    if (fd >= 0)
        close(fd);
    return false;
}

static bool is_free(int port)
{
    struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool free = fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof any) == 0;
    if (fd >= 0)
        close(fd);
    return free;
}

/* Below those that systems give to callers, which would come in between. */
int processes_free_port(void)
{
    enum { FIRST = 30000, PORTS = 2700 };
    static unsigned next;
    next = next ? next : (unsigned)getpid() * 61;
    for (int k = 0; k < PORTS; k++) {
        int port = FIRST + (int)(next++ % PORTS);
        if (reserve(port) && is_free(port))
            return port;
    }
    return 0;
}

void processes_init(world *w, int n)
{
    memset(w, 0, sizeof *w);
    w->n = n;
    w->port = processes_free_port();
    w->start = processes_now();
    w->address = "127.0.0.1";
}

void processes_start(world *w, int p, const char *role, const char *detail)
{
    char words[512];
    snprintf(words, sizeof words, "%d %d %d %s %s", p, w->n, w->port, w->address, detail && *detail ? detail : "-");
    pid_t parent = getpid();
    fflush(NULL);
    w->file[p] = tmpfile();
    w->pid[p] = fork();
    if (w->pid[p] != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || !w->file[p])
        _exit(120);
    dup2(fileno(w->file[p]), 1);
    dup2(fileno(w->file[p]), 2);
    fcntl(1, F_SETFL, O_APPEND);
    if (w->net[p] > 0 && setns(w->net[p], CLONE_NEWNET) != 0)
        _exit(121);
    setenv("TREK_TEST_ROLE", role, 1);
    setenv("TREK_TEST_PART", words, 1);
    execl("/proc/self/exe", "part", (char *)NULL);
    _exit(122);
}

void processes_start_all(world *w, int n, const char *role, const char *detail, int victim, const char *victim_detail)
{
    processes_init(w, n);
    for (int p = 0; p < n; p++)
        processes_start(w, p, role, p == victim ? victim_detail : detail);
}

void processes_run_all(world *w, int n, const char *role, const char *detail, int victim, const char *victim_detail)
{
    processes_start_all(w, n, role, detail, victim, victim_detail);
    processes_finish(w, -1);
}

void processes_run_each(world *w, int n, const char *role, const char *const *details)
{
    processes_init(w, n);
    for (int p = 0; p < n; p++)
        processes_start(w, p, role, details[p]);
    processes_finish(w, -1);
}

static void read_output(world *w, int p)
{
    if (!w->file[p])
        return;
    rewind(w->file[p]);
    size_t got = fread(w->text[p], 1, OUTPUT - 1, w->file[p]);
    w->text[p][got] = '\0';
    fclose(w->file[p]);
    w->file[p] = NULL;
}

static bool reap(world *w, int p, int options)
{
    int state;
    if (waitpid(w->pid[p], &state, options) != w->pid[p])
        return false;
    w->seconds[p] = processes_now() - w->start;
    w->code[p] = WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
    w->pid[p] = 0;
    read_output(w, p);
    return true;
}

void processes_finish(world *w, int but)
{
    double end = processes_now() + HANGS_S;
    bool running = true;
    while (running && processes_now() < end) {
        running = false;
        for (int p = 0; p < w->n; p++)
            if (p != but && w->pid[p] > 0 && !reap(w, p, WNOHANG))
                running = true;
        struct timespec pause = { .tv_nsec = 5000000 };
        if (running)
            nanosleep(&pause, NULL);
    }
    for (int p = 0; p < w->n; p++) {
        if (p == but || w->pid[p] <= 0)
            continue;
        kill(w->pid[p], SIGKILL);
        reap(w, p, 0);
        w->code[p] = -1000;
    }
}

bool processes_wrote(const world *w, int p, const char *words)
{
    char text[OUTPUT];
    if (!w->file[p])
        return strstr(w->text[p], words) != NULL;
    ssize_t got = pread(fileno(w->file[p]), text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    return strstr(text, words) != NULL;
}

bool processes_await(const world *w, int p, const char *words)
{
    for (bool ended = false;;) {
        bool wrote = processes_wrote(w, p, words);
        if (wrote || ended)
            return wrote;
        siginfo_t about = { 0 };
        ended = w->pid[p] <= 0 || waitid(P_PID, (id_t)w->pid[p], &about, WEXITED | WNOHANG | WNOWAIT) != 0 || about.si_pid != 0;
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
    }
}

void processes_await_go(void)
{
    int number;
    sigset_t go;
    sigemptyset(&go);
    sigaddset(&go, SIGUSR1);
    sigwait(&go, &number);
}

void processes_go(const world *w, int p)
{
    if (w->pid[p] > 0)
        kill(w->pid[p], SIGUSR1);
}

void processes_kill(world *w, int p)
{
    if (w->pid[p] <= 0)
        return;
    kill(w->pid[p], SIGKILL);
    reap(w, p, 0);
}

void processes_print(const world *w)
{
    for (int p = 0; p < w->n; p++)
        fprintf(stderr, "--- process %d: code %d after %.2f s\n%s", p, w->code[p], w->seconds[p], w->text[p]);
}

void processes_want(const world *w, bool good, const char *what, int line)
{
    if (good)
        return;
    fprintf(stderr, "line %d: %s\n", line, what);
    processes_print(w);
    fail();
}

int processes_play(const part *me, const processes_role *roles, size_t count)
{
    for (size_t k = 0; k < count; k++)
        if (strcmp(me->role, roles[k].name) == 0)
            return roles[k].play(me);
    return 99;
}

const char *processes_engine(void)
{
    const char *name = getenv("TREK_TEST_ENGINE");
    return name && *name ? name : "shared";
}

const char *processes_built(const char *file)
{
    static _Thread_local char path[4096];
    const char *build = getenv("TREK_TEST_BUILD");
    snprintf(path, sizeof path, "%s/%s", build ? build : ".", file);
    return path;
}

bool processes_launcher_there(void)
{
    if (access(processes_built("tools/trek-run"), X_OK) == 0)
        return true;
    printf("%s is not there: TREK_TEST_BUILD tells the build's folder\n", processes_built("tools/trek-run"));
    return false;
}

int processes_launch(int n, bool by_mpirun, const char *const *variables)
{
    char count[16], self[4096];
    const char *launcher = processes_built("tools/trek-run");
    snprintf(count, sizeof count, "%d", n);
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = '\0';
    pid_t pid = fork();
    if (pid == 0) {
        for (; *variables; variables += 2)
            setenv(variables[0], variables[1], 1);
        if (!by_mpirun)
            execl(launcher, launcher, "-n", count, self, (char *)NULL);
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        execlp("mpirun", "mpirun", "--oversubscribe", "-n", count, self, (char *)NULL);
        _exit(127);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void processes_pause(int ms)
{
    struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

int processes_running(const char *word)
{
    DIR *dir = opendir("/proc");
    int count = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[300], line[1024];
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        int pid = atoi(entry->d_name), fd = pid > 0 && pid != getpid() ? open(path, O_RDONLY) : -1;
        ssize_t length = fd >= 0 ? read(fd, line, sizeof line) : 0;
        if (fd >= 0)
            close(fd);
        count += length > 0 && memmem(line, (size_t)length, word, strlen(word)) != NULL;
    }
    if (dir)
        closedir(dir);
    return count;
}
