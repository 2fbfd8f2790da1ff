/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const options_help[] = {
    "usage: trek-run -n PROCESSES [options] [--] program [arguments]\n"
    "       trek-run --hosts HOST:PROCESSES,... [options] [--] program [arguments]\n"
    "       trek-run --join HOST:PORT [-n PROCESSES] [options] [--] program [arguments]\n"
    "\n"
    "Starts copies of the program as the processes of one job, on this machine or, by ssh, on others; with --join as further\n"
    "processes of a job that is running.\n"
    "\n"
    "  -n, --processes N        number of processes\n"
    "  -c, --cores-per-process N  pins each process to N cores of its own. By default all processes\n"
    "                           share all cores and divide the threads (TREK_THREADS)\n"
    "  -p, --prefix             prints the rank before each line of output, in colour on a terminal\n"
    "  -l, --log-dir FOLDER     also writes the output of each process to FOLDER: process-K.log and process-K.err. If\n"
    "                           these files exist, or if the process is started again: process-K.1.log and so on\n"
    "  -q, --quiet              with --log-dir: prints no output of processes, only writes it to files\n"
    "      --monitor[=PORT]     shows the job on a page for browsers of this machine while it runs. The processes write\n"
    "                           to the folder TREK_LOG_DIR; if that is not set, to the folder \"runs\" of --log-dir, or to\n"
    "                           a temporary folder, which is kept. Default port 6006, or a free one if that is in use;\n"
    "                           0: any free port\n"
    "  -g, --grace SECONDS      time for the other processes to end after one has failed, before SIGTERM and later\n"
    "                           SIGKILL; also for processes that are stopped (SIGSTOP) when all others have ended;\n"
    "                           default 10\n"
    "  -m, --min-processes N    while N processes run, or have ended with 0, a failure does not end the others\n"
    "                           (trek_run_opts.min_processes); default: all\n"
    "  -r, --restarts N         with --min-processes: starts failed processes again, N times in all. They join the\n"
    "                           others (TREK_JOIN=1): in grains at the next step, other runs at their next epoch. No\n"
    "                           restarts after a process has ended with 0; default 0. --restart is the same\n"
    "      --join HOST:PORT     the processes come to the job that was started at this address (--address, --port) with\n"
    "                           --min-processes: in grains at the next step, to other runs at their next epoch. The\n"
    "                           job's secret is that of TREK_TOKEN or TREK_TOKEN_FILE. A failure of one does not end the\n"
    "                           others; with --restarts each may come again. Default of -n: 1\n",
    /* a string has at most 4095 characters */
    "  -H, --hosts LIST         machines, separated by commas: HOST or HOST:PROCESSES. Without -n, a host without a\n"
    "                           number gets one process. With -n, such hosts share the remaining processes\n"
    "      --hostfile FILE      the same, one machine on each line: HOST slots=PROCESSES, or HOST:PROCESSES; # begins a\n"
    "                           comment\n"
    "      --ssh COMMAND        command that reaches another machine; default: TREK_RUN_SSH, otherwise ssh that asks no\n"
    "                           questions\n"
    "      --remote-trek-run PATH  path of trek-run on the other machines; default: the path on this machine\n"
    "  -x, --env NAME[=VALUE]   sets a variable for all processes. Other machines get only these and TREK_*\n"
    "  -w, --wdir FOLDER        working folder of the processes on all machines; default: that of trek-run\n"
    "      --address HOST, --port N  where the other processes reach process 0; found by default\n"
    "      --dry-run            prints what would run on which machine, and ends\n"
    "  -h, --help               prints this text\n"
    "\n"
    "Each process has TREK_RANK, TREK_WORLD_SIZE, TREK_LOCAL_RANK, TREK_LOCAL_WORLD_SIZE, TREK_ADDRESS, TREK_PORT,\n"
    "TREK_TOKEN, TREK_RUN_NAME and TREK_LAUNCHER_FD (a file that lists the processes that have ended) in its environment; with\n"
    "--join TREK_JOIN=new instead of the first two. If TREK_TOKEN or TREK_TOKEN_FILE is set, that is the job's secret, so that\n"
    "others can join the job; otherwise trek-run makes one. In a process of a job only --join reads these variables.\n"
    "Rank 0 reads standard input; the other ranks read nothing. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on\n"
    "to all processes; a second SIGINT ends all of them at once.\n"
    "\n"
    "Exit status: 0 if all processes, or as many as --min-processes says, have ended with 0. Otherwise the status of the\n"
    "first process that failed, or of one that a signal ended just afterwards, because that is often the cause; 128 + signal\n"
    "if a signal ended it or its machine was lost. 1 if a machine cannot be reached at the beginning, 2 for a wrong call,\n"
    "126 or 127 if the program cannot be run.\n",
    NULL
};

static int wrong_call(const char *what, const char *which)
{
    fprintf(stderr, "trek-run: %s%s%s\ntrek-run --help shows how to call it\n", what, which ? ": " : "", which ? which : "");
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

/* Splits HOST:PORT into address and port. An address with colons is in brackets. */
static int take_join(options *o, char *text)
{
    char *colon = text ? strrchr(text, ':') : NULL;
    bool bracketed = text && *text == '[' && colon && colon[-1] == ']';
    if (!colon || colon == text || !read_port(colon + 1, 1) || (!bracketed && strchr(text, ':') != colon))
        return wrong_call("--join takes HOST:PORT, as the job was started with --address and --port", text);
    if (bracketed)
        colon[-1] = '\0';
    *colon = '\0';
    o->joins = true;
    o->address = text + bracketed;
    o->port = colon + 1;
    return *o->address ? 0 : wrong_call("--join takes HOST:PORT, as the job was started with --address and --port", NULL);
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
    char *text = *k + 1 < argc ? argv[*k + 1] : NULL;
    if (strcmp(name, "--join") == 0) {
        ++*k;
        return take_join(o, text);
    }
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

/* What options of a job mean for processes that come to one. */
static int check_join(options *o)
{
    if (!o->joins)
        return 0;
    if (o->enough)
        return wrong_call("--min-processes does not go with --join: the job has its own", NULL);
    if (o->processes == 0 && o->hosts.n == 0)
        o->processes = 1;
    return 0;
}

static int check(options *o)
{
    int wrong = check_join(o);
    if (wrong)
        return wrong;
    if (o->processes == 0 && o->hosts.n == 0)
        return wrong_call("how many processes? -n is missing", NULL);
    if (o->hosts.n > 0 && (o->processes = hosts_place(&o->hosts, o->processes)) == 0)
        return USAGE;
    if (o->enough > o->processes)
        return wrong_call("--min-processes is more than -n", NULL);
    if (o->restarts && !o->enough && !o->joins)
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
