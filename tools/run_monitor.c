/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run_monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "tools/run_output.h"
#include "tools/run_start.h"

/* Writes PROGRAM-YYYYMMDD-HHMMSS, restricted to characters that a run's name may have. */
static void name_run(const char *program, char *name, size_t size)
{
    const char *slash = strrchr(program, '/');
    time_t now = time(NULL);
    struct tm local;
    int length = snprintf(name, size, "%.100s", slash ? slash + 1 : program);
    for (int k = 0; k < length; k++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-", name[k]))
            name[k] = '_';
    if (localtime_r(&now, &local))
        strftime(name + length, size - (size_t)length, "-%Y%m%d-%H%M%S", &local);
}

bool monitor_prepare(bool shown, const char *log_dir, const char *program)
{
    char name[160], runs[PATH_MAX] = "/tmp/trek-run-XXXXXX", real[PATH_MAX];
    const char *folder = getenv("TREK_LOG_DIR"), *run = getenv("TREK_RUN_NAME");
    name_run(program, name, sizeof name);
    setenv("TREK_RUN_NAME", run && *run ? run : name, 1);
    if (!shown)
        return true;
    if (!folder || !*folder) {
        folder = runs;
        if (log_dir && snprintf(runs, sizeof runs, "%s/runs", log_dir) >= (int)sizeof runs)
            folder = NULL;
        else if (!log_dir)
            folder = mkdtemp(runs);
    }
    if (!folder || !output_folder(folder) || !realpath(folder, real)) {
        fprintf(stderr, "trek-run: --monitor: no folder for runs: %s\n", strerror(errno));
        return false;
    }
    setenv("TREK_LOG_DIR", real, 1);
    return true;
}

/* Runs in the child and ends it. */
static void become_server(const char *port)
{
    char own[PATH_MAX], serve[32] = "--serve", *folder = getenv("TREK_LOG_DIR");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - sizeof "trek-top");
    own[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(own, '/');
    strcpy(slash ? slash + 1 : own, "trek-top");
    if (port)
        snprintf(serve, sizeof serve, "--serve=%s", port);
    int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO); /* standard output belongs to the program */
    setpgid(0, 0);                      /* a terminal's Ctrl-C is for the program, whose end the page shows */
    start_unblock();
    char *argv[] = { "trek-top", serve, "--token", folder, NULL }; /* other users of this machine must not see it */
    execv(own, argv);
    execvp("trek-top", argv);
    fprintf(stderr, "trek-run: --monitor: trek-top cannot be run: %s\n", strerror(errno));
    _exit(127);
}

void monitor_start(const char *port)
{
    pid_t pid = fork();
    if (pid == 0)
        become_server(port);
    if (pid < 0)
        fprintf(stderr, "trek-run: --monitor: %s\n", strerror(errno));
}
