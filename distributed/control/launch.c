/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers: what each of them puts into the environment of the processes that it starts. */
#include "distributed/control/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "distributed/control/call.h"
#include "distributed/system/system.h"
#include "tensor/environment.h"
#include "tensor/status_internal.h"

/* The longest line of the launcher's file. */
enum { LINE = 512 };

typedef struct launcher {
    const char *name, *rank, *world, *locals;
} launcher;

enum { TREK_RUN, TORCHRUN, OPEN_MPI, SLURM, LAUNCHERS };

static const launcher launchers[LAUNCHERS] = {
    [TREK_RUN] = { "trek-run", "TREK_RANK", "TREK_WORLD_SIZE", "TREK_LOCAL_WORLD_SIZE" },
    [TORCHRUN] = { "torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE" },
    [OPEN_MPI] = { "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE" },
    [SLURM] = { "Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL },
};

static const char *const local_ranks[LAUNCHERS] = { TREK_LOCAL_RANK_VARIABLES };

/* Returns NULL if the variable is unset or empty. */
static const char *variable(const char *name)
{
    const char *value = name ? trek_process_variable(name) : NULL;
    return value && *value ? value : NULL;
}

/* Reads a whole number in [low, high]; it is `missing` if the variable is unset. */
static trek_status number(const char *name, int low, int high, int missing, int *value)
{
    const char *text = variable(name);
    char *end;
    *value = missing;
    if (!text)
        return TREK_OK;
    errno = 0;
    long read = strtol(text, &end, 10);
    if (errno || *end || end == text || read < low || read > high)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: %s=\"%s\" in the environment; must be a whole number from %d to %d", name,
                         text, low, high);
    *value = (int)read;
    return TREK_OK;
}

/* Returns whether the launcher has started this process. In an allocation every process has SLURM_PROCID and
 * SLURM_NTASKS, even the shell of a batch script, but only the processes of a step are Slurm's. An interactive shell
 * is a step of one process. */
static bool started_by(int which)
{
    const launcher *l = &launchers[which];
    if (which == SLURM)
        return variable("SLURM_STEP_ID") && variable(l->rank) && variable(l->world);
    return variable(l->rank) || variable(l->world);
}

static trek_status check_local(const trek_launch *launch, const char *local, const char *locals)
{
    if (launch->locals <= launch->processes && (launch->locals <= 0 || launch->local < launch->locals))
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT, "comm_init: %s=%d and %s=%d in the environment contradict a job of %d processes", local,
                     launch->local, locals, launch->locals, launch->processes);
}

/* Reads what one launcher says. */
static trek_status ask(int which, trek_launch *launch)
{
    const launcher *l = &launchers[which];
    if (!variable(l->rank) || !variable(l->world))
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: %s is set in the environment, but %s is not (%s sets both)",
                         variable(l->rank) ? l->rank : l->world, variable(l->rank) ? l->world : l->rank, l->name);
    trek_status status = number(l->world, 1, TREK_MAX_RANKS, 1, &launch->processes);
    if (status == TREK_OK)
        status = number(l->rank, 0, INT_MAX, 0, &launch->process);
    if (status == TREK_OK)
        status = number(l->locals, 1, TREK_MAX_RANKS, -1, &launch->locals);
    if (status == TREK_OK)
        status = number(local_ranks[which], 0, TREK_MAX_RANKS, -1, &launch->local);
    if (status != TREK_OK)
        return status;
    if (launch->process >= launch->processes)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: %s=%d and %s=%d in the environment: such a process does not exist",
                         l->rank, launch->process, l->world, launch->processes);
    snprintf(launch->source, sizeof launch->source, "%s", l->name);
    return check_local(launch, local_ranks[which], l->locals);
}

/* Slurm may start other launchers, one on each machine. Its numbers are the same as theirs only if the worlds are
 * equal, and they may use another order. */
static bool may_differ(int first, int other, const trek_launch *a, const trek_launch *b)
{
    bool numbers_anew = first == OPEN_MPI || (first == TORCHRUN && variable("TORCHELASTIC_RUN_ID"));
    return other == SLURM && (numbers_anew || a->processes != b->processes);
}

/* Takes over from `other`, which describes the same process, what it knows of the machine. */
static trek_status merge_local(int first, int second, const trek_launch *other, trek_launch *launch)
{
    bool keeps_local = launch->local >= 0, keeps_locals = launch->locals >= 0;
    launch->local = keeps_local ? launch->local : other->local;
    launch->locals = keeps_locals ? launch->locals : other->locals;
    return check_local(launch, local_ranks[keeps_local ? first : second], launchers[keeps_locals ? first : second].locals);
}

static trek_status ask_all(trek_launch *launch, int *which)
{
    *which = -1;
    for (int l = 0; l < LAUNCHERS; l++) {
        trek_launch other = *launch;
        if (!started_by(l))
            continue;
        trek_status status = ask(l, *which < 0 ? launch : &other);
        if (status != TREK_OK)
            return status;
        if (*which < 0) {
            *which = l;
        } else if (!may_differ(*which, l, launch, &other) &&
                   (other.process != launch->process || other.processes != launch->processes)) {
            const launcher *a = &launchers[*which], *b = &launchers[l];
            return trek_fail(TREK_ERR_ARGUMENT,
                             "comm_init: the environment contradicts itself: %s=%d, %s=%d (%s), but %s=%d, %s=%d (%s)", a->rank,
                             launch->process, a->world, launch->processes, a->name, b->rank, other.process, b->world,
                             other.processes, b->name);
        } else if (other.process == launch->process && other.processes == launch->processes) {
            status = merge_local(*which, l, &other, launch);
            if (status != TREK_OK)
                return status;
        }
    }
    return TREK_OK;
}

/* --- where process 0 is ------------------------------------------------------------------------------------------- */

bool trek_launch_first_host(const char *list, char *host, size_t size)
{
    size_t used = 0;
    for (const char *c = list; *c && *c != ','; c++) {
        if (*c != '[') {
            if (used + 1 >= size)
                return false;
            host[used++] = *c;
            continue;
        }
        size_t digits = strcspn(c + 1, "-,]");
        const char *end = strchr(c, ']');
        if (!end || digits == 0 || used + digits >= size)
            return false;
        memcpy(host + used, c + 1, digits);
        used += digits;
        c = end;
    }
    host[used] = '\0';
    return used > 0;
}

/* Gets the first host of e.g. "988545024.0;tcp://10.0.0.2,172.17.0.1:32953;tcp6://...", which is the machine that
 * mpirun runs on. */
static bool first_uri_host(const char *uri, char *host, size_t size)
{
    const char *start = strstr(uri, "://");
    if (!start)
        return false;
    start += 3;
    start += *start == '[';
    size_t length = strcspn(start, strncmp(start - 1, "[", 1) == 0 ? "]," : ",:;");
    if (length == 0 || length >= size)
        return false;
    memcpy(host, start, length);
    host[length] = '\0';
    return true;
}

static bool one_machine(int which, const trek_launch *launch)
{
    const char *nodes = variable("SLURM_STEP_NUM_NODES");
    if (launch->locals == launch->processes || which < 0 || which == TREK_RUN)
        return true;
    return which == SLURM && nodes && strcmp(nodes, "1") == 0;
}

static trek_status find_address(const trek_launch_opts *opts, int which, trek_launch *launch)
{
    const char *given = opts && opts->address ? opts->address : variable("TREK_ADDRESS");
    const char *nodes = variable("SLURM_STEP_NODELIST"), *uri = variable("OMPI_MCA_orte_hnp_uri");
    size_t size = sizeof launch->address;
    if (!given && which != TREK_RUN)
        given = launch->locals == launch->processes ? NULL : variable("MASTER_ADDR");
            /* for a job of one machine no other machine need reach it */
    if (given && strlen(given) >= size)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: the address of process 0: %zu bytes; too many for an address",
                         strlen(given));
    if (given)
        snprintf(launch->address, size, "%s", given);
    else if (one_machine(which, launch) || launch->processes == 1)
        snprintf(launch->address, size, "127.0.0.1");
    else if (which == SLURM && nodes && !trek_launch_first_host(nodes, launch->address, size))
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: SLURM_STEP_NODELIST=\"%s\" in the environment; must be a list of hosts",
                         nodes);
    else if (which == OPEN_MPI && uri && !first_uri_host(uri, launch->address, size))
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: OMPI_MCA_orte_hnp_uri=\"%s\" in the environment; must name a host", uri);
    if (launch->address[0] == '\0')
        return trek_fail(TREK_ERR_ARGUMENT,
                         "comm_init: %s does not tell on which machine process 0 runs; name it in MASTER_ADDR or TREK_ADDRESS",
                         launch->source);
    return TREK_OK;
}

/* --- its secret --------------------------------------------------------------------------------------------------- */

enum { LEAST_SECRET = 16 };

/* Reads the first line of a file that no other user may read. */
static trek_status read_secret(const char *path, char *token, size_t size)
{
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return trek_fail(TREK_ERR_IO, "comm_init: TREK_TOKEN_FILE=\"%.200s\": cannot be read: %s", path, strerror(errno));
    bool own = fstat(file, &about) == 0 && S_ISREG(about.st_mode) && !(about.st_mode & 077) &&
        (about.st_uid == geteuid() || about.st_uid == 0);
    ssize_t length = own ? read(file, token, size - 1) : 0;
    close(file);
    token[length > 0 ? length : 0] = '\0';
    bool whole = length > 0 && length < (ssize_t)size - 1;
    token[strcspn(token, "\r\n")] = '\0';
    if (!own)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: TREK_TOKEN_FILE=\"%.200s\": must be a file of this user, of mode 0600",
                         path);
    if (!whole || strlen(token) < LEAST_SECRET)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: TREK_TOKEN_FILE=\"%.200s\": the first line must have %d to %zu bytes",
                         path, LEAST_SECRET, size - 2);
    return TREK_OK;
}

static trek_status find_secret(const trek_launch_opts *opts, const char *job, trek_launch *launch)
{
    const char *token = opts && opts->token ? opts->token : variable("TREK_TOKEN"), *file = variable("TREK_TOKEN_FILE");
    size_t size = sizeof launch->token;
    if (token && strlen(token) >= size)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: the job's token: %zu bytes; must be at most %zu", strlen(token),
                         size - 1);
    launch->trusted = token && strcmp(token, "none") == 0;
    launch->secret = !launch->trusted && (token || file);
    if (!token && file && launch->processes > 1)
        return read_secret(file, launch->token, size);
    snprintf(launch->token, size, "%s", launch->secret ? token : job);
    return TREK_OK;
}

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 || strcmp(address, "localhost") == 0;
}

trek_status trek_launch_check_secret(const trek_launch *launch)
{
    if (launch->processes == 1 || launch->trusted || is_loopback(launch->address))
        return TREK_OK;
    if (!launch->secret)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "comm_init: process 0 of this job listens at %s, which other machines can reach, and the job has no "
                         "secret: set TREK_TOKEN to one, or TREK_TOKEN_FILE to a file of mode 0600 that all processes read; "
                         "trek-run makes one; TREK_TOKEN=none says that everybody on that network is trusted",
                         launch->address);
    if (strlen(launch->token) < LEAST_SECRET)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: the job's token: %zu bytes; a secret on a network must have at least %d",
                         strlen(launch->token), LEAST_SECRET);
    return TREK_OK;
}

/* Makes a name of the job if there is no secret; "" if nothing names it. */
static void name_job(int which, char *text, size_t size)
{
    const char *job = NULL, *step = NULL;
    if (which == TORCHRUN) {
        job = variable("TORCHELASTIC_RUN_ID");
        step = variable("MASTER_PORT");
    } else if (which == OPEN_MPI) {
        job = variable("OMPI_MCA_ess_base_jobid");
        step = job ? NULL : variable("PMIX_NAMESPACE");
    } else if (which == SLURM) {
        job = variable("SLURM_JOB_ID");
        step = variable("SLURM_STEP_ID");
    }
    text[0] = '\0';
    if (job || step)
        snprintf(text, size, "%s %s.%s", launchers[which].name, job ? job : "", step ? step : "");
}

/* Makes the name for what the job writes. A port, or a run id that was generated, may later belong to another job; on
 * one machine the parent process that has started all of the job distinguishes them. */
static void name_run(int which, trek_launch *launch)
{
    const char *job = NULL, *step = NULL;
    bool alone = launch->newcomer ? false : which == TREK_RUN ? strncmp(launch->address, "127.", 4) == 0
        : launch->locals == launch->processes;
    char parent[24] = "", port[16];
    if (launch->processes == 1)
        return;
    snprintf(port, sizeof port, "%d", launch->port);
    if (which == TORCHRUN || which == TREK_RUN || which < 0) {
        job = which == TORCHRUN ? variable("TORCHELASTIC_RUN_ID") : launch->address;
        step = which == TORCHRUN && variable("MASTER_PORT") ? variable("MASTER_PORT") : port;
        if (alone)
            snprintf(parent, sizeof parent, ".%ld", (long)trek_process_parent());
    } else if (which == OPEN_MPI) {
        job = variable("OMPI_MCA_ess_base_jobid") ? variable("OMPI_MCA_ess_base_jobid") : variable("PMIX_NAMESPACE");
    } else {
        job = variable("SLURM_JOB_ID");
        step = variable("SLURM_STEP_ID");
    }
    snprintf(launch->job, sizeof launch->job, "%.120s%s%.100s%s", job ? job : "", step ? "." : "", step ? step : "", parent);
}

/* Returns a port below those that systems give to callers. */
static int port_of_job(const char *name)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    return 10000 + (int)(hash % 20000);
}

static trek_status find_port(const trek_launch_opts *opts, int which, const char *job, trek_launch *launch)
{
    trek_status status = number("TREK_PORT", 1, 65535, 0, &launch->port);
    if (opts && opts->port)
        launch->port = opts->port;
    if (status != TREK_OK || launch->port || launch->processes == 1)
        return status;
    if (which != TREK_RUN && variable("MASTER_PORT")) {
        status = number("MASTER_PORT", 1, 65535, 0, &launch->port);
        const char *agent = variable("TORCHELASTIC_USE_AGENT_STORE");
        if (status == TREK_OK && which == TORCHRUN && agent && strcmp(agent, "True") == 0)
            launch->port = launch->port % 65535 + 1; /* torchrun itself listens there */
        return status;
    }
    if (job[0] == '\0')
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: the port of process 0 is not given; name one in TREK_PORT%s",
                         which == TORCHRUN ? " or MASTER_PORT" : "");
    launch->port = port_of_job(job);
    return TREK_OK;
}

/* --- who has ended ------------------------------------------------------------------------------------------------- */

/* The descriptor may have been closed since, and its number may belong to another file. The name shows whether it
 * does. */
static int find_deaths(int which)
{
    char path[64], target[64];
    int fd;
    if (which != TREK_RUN || number("TREK_LAUNCHER_FD", 0, INT_MAX, -1, &fd) != TREK_OK || fd < 0)
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    target[length > 0 ? length : 0] = '\0';
    return strncmp(target, "/memfd:trek-run", 15) == 0 ? fd : -1;
}

/* An offset behind the launcher's lines, which are shorter in total. */
#define BEGUN_AT (1 << 20)
#define STARTED_AGAIN "; it is started again"

/* Reads the next line of the file. Returns false if there is none yet. */
static bool next_line(int deaths, off_t *at, char *line, size_t size)
{
    ssize_t got = deaths >= 0 ? pread(deaths, line, size - 1, *at) : 0;
    line[got > 0 ? got : 0] = '\0';
    char *end = strchr(line, '\n');
    if (!end)
        return false;
    *end = '\0';
    *at += end + 1 - line;
    return true;
}

static bool is_started_again(const char *line)
{
    size_t length = strlen(line), tail = strlen(STARTED_AGAIN);
    return length >= tail && strcmp(line + length - tail, STARTED_AGAIN) == 0;
}

bool trek_launch_death(int deaths, char *text, size_t size)
{
    char line[LINE];
    off_t at = 0;
    while (next_line(deaths, &at, line, sizeof line))
        if (!is_started_again(line)) {
            snprintf(text, size, "process %s", line);
            return true;
        }
    return false;
}

int trek_launch_ended(int deaths, bool *ended, int processes)
{
    char line[LINE];
    off_t at = 0;
    int n = 0;
    memset(ended, 0, (size_t)processes * sizeof *ended);
    while (next_line(deaths, &at, line, sizeof line)) {
        long number = strtol(line, NULL, 10);
        if (number >= 0 && number < processes)
            ended[number] = !is_started_again(line);
    }
    for (int p = 0; p < processes; p++)
        n += ended[p];
    return n;
}

void trek_launch_note_begun(int deaths)
{
    if (deaths >= 0 && pwrite(deaths, "+", 1, BEGUN_AT) != 1)
        trek_log_message(TREK_LOG_LEVEL_DEBUG, "the launcher's file: %s", strerror(errno));
}

static bool has_begun(int deaths)
{
    char mark = '\0';
    return deaths < 0 || (pread(deaths, &mark, 1, BEGUN_AT) == 1 && mark == '+');
}

/* Returns whether TREK_JOIN has this value. */
static bool join_is(const char *value)
{
    const char *text = variable("TREK_JOIN");
    return text && strcmp(text, value) == 0;
}

bool trek_launch_joins(void) { return join_is("new") || (join_is("1") && has_begun(find_deaths(TREK_RUN))); }

/* A process that comes to a job is told where the job is, and nothing of its size. Numbers of other launchers are those of
 * another job. */
static trek_status describe_newcomer(const trek_launch_opts *opts, trek_launch *launch)
{
    if (!(opts && opts->address) && !variable("TREK_ADDRESS"))
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: TREK_JOIN=\"new\" in the environment, without TREK_ADDRESS; must be the "
                                            "address at which the job was started");
    if (!(opts && opts->port) && !variable("TREK_PORT"))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "comm_init: TREK_JOIN=\"new\" in the environment, without TREK_PORT; must be the port "
                         "at which the job was started");
    trek_status status = number("TREK_LOCAL_WORLD_SIZE", 1, TREK_MAX_RANKS, -1, &launch->locals);
    if (status == TREK_OK)
        status = number("TREK_LOCAL_RANK", 0, TREK_MAX_RANKS, -1, &launch->local);
    launch->newcomer = true;
    launch->process = TREK_MAX_RANKS + (launch->local > 0 ? launch->local : 0);
    launch->processes = 2;
    snprintf(launch->source, sizeof launch->source, "TREK_JOIN");
    return status;
}

static trek_status take_opts(const trek_launch_opts *opts, trek_launch *launch)
{
    if (opts->world_size < 0 || opts->world_size > TREK_MAX_RANKS || (opts->world_size == 0 && opts->rank != 0))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "comm_init: .world_size: rank %d in a world of %d processes; must be 1 to %d processes", opts->rank,
                         opts->world_size, TREK_MAX_RANKS);
    if (opts->world_size > 0 && (opts->rank < 0 || opts->rank >= opts->world_size))
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: .rank: %d; must be below %d, the number of processes", opts->rank,
                         opts->world_size);
    if (opts->port < 0 || opts->port > 65535)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: .port: %d of process 0; must be 1 to 65535", opts->port);
    launch->process = opts->rank;
    launch->processes = opts->world_size;
    snprintf(launch->source, sizeof launch->source, "options");
    return TREK_OK;
}

trek_status trek_launch_find(const trek_launch_opts *opts, trek_launch *launch)
{
    int which = -1;
    char job[200];
    *launch = (trek_launch){ .local = -1, .locals = -1, .deaths = -1 };
    trek_status status = opts ? take_opts(opts, launch) : TREK_OK;
    if (status == TREK_OK && launch->processes == 0)
        status = join_is("new") ? describe_newcomer(opts, launch) : ask_all(launch, &which);
    if (status != TREK_OK)
        return status;
    if (launch->processes == 0) {
        launch->processes = 1;
        snprintf(launch->source, sizeof launch->source, "single process");
    }
    launch->deaths = find_deaths(which);
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    name_job(which, job, sizeof job);
    status = find_address(opts, which, launch);
    if (status == TREK_OK)
        status = find_port(opts, which, job, launch);
    if (status == TREK_OK)
        status = find_secret(opts, job, launch);
    if (status == TREK_OK)
        name_run(which, launch);
    return status;
}
