/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char options_help[] =
    "usage: trek-run -n PROCESSES [options] [--] program [arguments]\n"
    "       trek-run --hosts HOST:PROCESSES,... [options] [--] program [arguments]\n"
    "\n"
    "Starts copies of the program as the processes of one job, on this machine or, by ssh, on others.\n"
    "\n"
    "  -n, --processes N        how many\n"
    "  -c, --cores-per-process N  pins each process to N cores of its own; otherwise they share\n"
    "                           all cores, each with its part of the threads (TREK_THREADS)\n"
    "  -p, --prefix             puts the rank in front of each line of output, in colour on a terminal\n"
    "  -l, --log-dir FOLDER     writes what each process prints to files of the folder, too: process-K.log and\n"
    "                           process-K.err; process-K.1.log and so on of one that is started again, or where there\n"
    "                           are files already\n"
    "  -q, --quiet              with --log-dir: to the files alone\n"
    "      --monitor[=PORT]     shows the job on a page for browsers of this machine, while it runs; the processes write what\n"
    "                           it shows to TREK_LOG_DIR: if that is not set, a folder \"runs\" of --log-dir, or a temporary\n"
    "                           one, which stays. PORT 0: any; 6006 unless given, or any if that is taken\n"
    "  -g, --grace SECONDS      how long the others may take to end by themselves once one has\n"
    "                           failed, before SIGTERM and later SIGKILL; 10 unless given. The same for processes that\n"
    "                           are stopped (SIGSTOP) when all others have ended\n"
    "  -m, --min-processes N    how many are enough: while N run on, or have ended with 0, one that fails\n"
    "                           does not end the others (trek_run_opts.min_processes); all unless given\n"
    "  -r, --restarts N         with --min-processes: one that fails is started again, N times in all, to join the\n"
    "                           others at their next epoch (TREK_JOIN=1); not once one has ended with 0; 0 unless given.\n"
    "                           --restart is the same\n"
    "  -H, --hosts LIST         on which machines: HOST or HOST:PROCESSES, by commas; without -n as many as they say, one where\n"
    "                           nothing is said. With -n hosts without a number share what the others leave\n"
    "      --hostfile FILE      the same, a line for each: HOST slots=PROCESSES, or HOST:PROCESSES; # begins a comment\n"
    "      --ssh COMMAND        how other machines are reached: TREK_RUN_SSH, else ssh without questions\n"
    "      --remote-trek-run PATH  where trek-run is on them; as here unless given\n"
    "  -x, --env NAME[=VALUE]   a variable for all processes; to other machines only these and TREK_* go along\n"
    "  -w, --wdir FOLDER        where the processes run, on all machines; where trek-run does unless given\n"
    "      --address HOST, --port N  where process 0 is reached by the others; found unless given\n"
    "      --dry-run            says what would run where, and ends\n"
    "  -h, --help\n"
    "\n"
    "Each process finds TREK_RANK, TREK_WORLD_SIZE, TREK_LOCAL_RANK, TREK_LOCAL_WORLD_SIZE, TREK_ADDRESS, TREK_PORT,\n"
    "TREK_TOKEN, TREK_RUN_NAME and TREK_LAUNCHER_FD (a file that tells which processes have ended) in its environment. Rank 0\n"
    "reads standard input, the others read nothing. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to all; a second\n"
    "SIGINT ends all at once. Exit status: 0 if all ended with 0, or as many as are enough, else that of the first that failed\n"
    "(or that a signal ended just after: others fail by that); 128 + signal if a signal ended it, as for one whose machine was\n"
    "lost; 1 if a machine is not reached at the beginning; 2 for a wrong call, 126 or 127 if the program cannot be run.\n";

static int wrong_call(const char *what, const char *which)
{
    fprintf(stderr, "trek-run: %s%s%s\ntrek-run --help tells how it is called\n", what, which ? ": " : "", which ? which : "");
    return USAGE;
}

static bool read_number(const char *text, double least, double most, double *value)
{
    char *end;
    errno = 0;
    *value = text ? strtod(text, &end) : 0;
    return text && *text && *end == '\0' && errno == 0 && *value >= least && *value <= most;
}

static bool read_port(const char *text, double least)
{
    double value;
    return text && read_number(text, least, 65535, &value) && strspn(text, "0123456789") == strlen(text);
}

enum { NUMBER, SECONDS, TEXT, FLAG };

/* What an option takes, and where it is stored. */
typedef struct option {
    const char *brief, *name;
    int kind;
    double least, most;
    void *to;
    const char *wrong;
} option;

/* Handles "-x NAME=VALUE" and "-x NAME": the processes on this machine inherit it, and its name is kept for the
 * others. */
static int take_variable(options *o, const char *text)
{
    size_t length = text ? strcspn(text, "=") : 0;
    int n = 0;
    while (o->travels[n])
        n++;
    if (length == 0 || n == MOST)
        return wrong_call("--env takes NAME or NAME=VALUE", text);
    char *name = o->travels[n] = strndup(text, length);
    if (name && text[length] == '=')
        setenv(name, text + length + 1, 1);
    return name && !getenv(name) ? wrong_call("--env: this variable is not set", name) : 0;
}

/* Returns 0, an exit status, or -1 if it is none of these options. *k is then at the option's last word. */
static int take_plain(options *o, int argc, char **argv, int *k)
{
    const option list[] = {
        { "-h", "--help", FLAG, 0, 0, &o->help, NULL },
        { "-p", "--prefix", FLAG, 0, 0, &o->prefix, NULL },
        { "-q", "--quiet", FLAG, 0, 0, &o->quiet, NULL },
        { NULL, "--agent", FLAG, 0, 0, &o->agent, NULL },
        { NULL, "--dry-run", FLAG, 0, 0, &o->dry_run, NULL },
        { "-n", "--processes", NUMBER, 1, MOST, &o->processes, "-n takes a number from 1 to 1024" },
        { "-c", "--cores-per-process", NUMBER, 1, MOST, &o->cores, "--cores-per-process takes a number from 1 to 1024" },
        { "-m", "--min-processes", NUMBER, 1, MOST, &o->enough, "--min-processes takes a number from 1 to 1024" },
        { "-r", "--restarts", NUMBER, 0, 1e6, &o->restarts, "--restarts takes a number from 0 to 1000000" },
        { NULL, "--restart", NUMBER, 0, 1e6, &o->restarts, "--restarts takes a number from 0 to 1000000" },
        { "-g", "--grace", SECONDS, 0, 1e6, &o->grace, "--grace takes seconds" },
        { "-l", "--log-dir", TEXT, 0, 0, &o->log_dir, "--log-dir takes a folder" },
        { "-w", "--wdir", TEXT, 0, 0, &o->folder, "--wdir takes a folder" },
        { NULL, "--ssh", TEXT, 0, 0, &o->ssh, "--ssh takes a command" },
        { NULL, "--remote-trek-run", TEXT, 0, 0, &o->remote_trek_run, "--remote-trek-run takes a path" },
        { NULL, "--address", TEXT, 0, 0, &o->address, "--address takes a host" },
        { NULL, "--port", TEXT, 0, 0, &o->port, "--port takes a port, 1 to 65535" },
    };
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) {
        const option *x = &list[n];
        double value;
        if (strcmp(argv[*k], x->name) != 0 && !(x->brief && strcmp(argv[*k], x->brief) == 0))
            continue;
        const char *text = x->kind == FLAG ? NULL : ++*k < argc ? argv[*k] : NULL;
        if (x->kind == FLAG) {
            *(bool *)x->to = true;
        } else if (x->kind == TEXT) {
            if (!text || !*text)
                return wrong_call(x->wrong, NULL);
            *(const char **)x->to = text;
        } else {
            if (!read_number(text, x->least, x->most, &value) || (x->kind == NUMBER && value != (int)value))
                return wrong_call(x->wrong, text);
            if (x->kind == NUMBER)
                *(int *)x->to = (int)value;
            else
                *(double *)x->to = value;
        }
        return 0;
    }
    return -1;
}

/* The same for options that take more than one word. */
static int take_other(options *o, int argc, char **argv, int *k)
{
    const char *name = argv[*k], *equals = strchr(name, '=');
    if (strcmp(name, "--monitor") == 0 || strncmp(name, "--monitor=", 10) == 0) {
        o->monitor = true;
        o->page = equals ? equals + 1 : NULL;
        return o->page && !read_port(o->page, 0) ? wrong_call("--monitor takes a port, 0 to 65535", NULL) : 0;
    }
    const char *text = *k + 1 < argc ? argv[*k + 1] : NULL;
    bool list = strcmp(name, "-H") == 0 || strcmp(name, "--hosts") == 0 || strcmp(name, "--host") == 0;
    bool file = strcmp(name, "--hostfile") == 0, variable = strcmp(name, "-x") == 0 || strcmp(name, "--env") == 0;
    if (!list && !file && !variable)
        return wrong_call("unknown option", name);
    ++*k;
    if (variable)
        return take_variable(o, text);
    if (!text || !*text)
        return wrong_call(list ? "--hosts takes HOST:PROCESSES, by commas" : "--hostfile takes a file", NULL);
    return (list ? hosts_read_list(&o->hosts, "--hosts", text) : hosts_read_file(&o->hosts, text)) ? 0 : USAGE;
}

static int check(options *o)
{
    if (o->processes == 0 && o->hosts.n == 0)
        return wrong_call("how many processes? -n is missing", NULL);
    if (o->hosts.n > 0 && (o->processes = hosts_place(&o->hosts, o->processes)) == 0)
        return USAGE;
    if (o->enough > o->processes)
        return wrong_call("--min-processes is more than -n", NULL);
    if (o->restarts && !o->enough)
        return wrong_call("--restarts goes with --min-processes", NULL);
    if (o->quiet && !o->log_dir)
        return wrong_call("--quiet goes with --log-dir", NULL);
    if (o->port && !read_port(o->port, 1))
        return wrong_call("--port takes a port, 1 to 65535", NULL);
    if (o->address && strlen(o->address) >= 256)
        return wrong_call("--address takes a host", NULL);
    return 0;
}

int options_read(int argc, char **argv, options *o)
{
    int k = 1;
    for (; k < argc && argv[k][0] == '-'; k++) {
        if (strcmp(argv[k], "--") == 0) {
            k++;
            break;
        }
        int wrong = take_plain(o, argc, argv, &k);
        if (wrong < 0)
            wrong = take_other(o, argc, argv, &k);
        if (wrong)
            return wrong;
        if (o->help || o->agent)
            return 0;
    }
    int wrong = check(o);
    if (wrong)
        return wrong;
    if (k >= argc)
        return wrong_call("which program?", NULL);
    o->program = argv + k;
    return 0;
}
