/* SPDX-License-Identifier: Apache-2.0 */
/* trek-replay: starts a program again, as the header of its file of digests says, to make one of its steps again. It uses nothing
 * of the library, which does the rest (distributed/replay/). */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AS_RECORDED, FOUND, USAGE, FAILED, MOST_WORDS = 4096 };

static const char help[] =
    "usage: trek-replay DIGESTS --step STEP [--grain GRAIN] [-v] [-- PROGRAM ARGUMENT...]\n"
    "\n"
    "Makes a step of a run again, on one rank of one CPU, and says what went wrong in it: the first operator that gives a NaN, "
    "with its\n"
    "module, or the first digest that differs from what the run has recorded; and of which grain and sample.\n"
    "\n"
    "DIGESTS is the file that the run has written (.digests of trek_trainer_opts, with .grain). The program is started as it was "
    "then,\n"
    "in the same folder; its run begins at the last checkpoint before the step.\n"
    "\n"
    "  --step STEP    the step, from 1 on\n"
    "  --grain GRAIN  looks at this grain of the step only, from 0 on\n"
    "  -v             shows what the program prints\n"
    "  -- PROGRAM ... another program, or other arguments, started in the present folder\n"
    "\n"
    "Exit status: 0 if the step is as recorded, and without a NaN; 1 if something was found; 2 for a wrong call; 3 if the "
    "program did\n"
    "not come to the step.\n";

typedef struct options {
    const char *digests, *step, *grain;
    bool verbose;
    char **program;          /* NULL: as recorded */
} options;

static int wrong_call(const char *what, const char *which)
{
    fprintf(stderr, "trek-replay: %s%s%s\ntrek-replay --help shows how to call it\n", what, which ? ": " : "",
            which ? which : "");
    return USAGE;
}

static bool is_number(const char *text, const char *least)
{
    size_t n = strlen(text);
    return n > 0 && n < 19 && strspn(text, "0123456789") == n && strcmp(text, least) >= 0;
}

static int read_options(int argc, char **argv, options *o)
{
    for (int k = 1; k < argc; k++) {
        const char **value = strcmp(argv[k], "--step") == 0 ? &o->step : strcmp(argv[k], "--grain") == 0 ? &o->grain : NULL;
        if (strcmp(argv[k], "--") == 0) {
            o->program = argv + k + 1;
            break;
        }
        if (value && k + 1 == argc)
            return wrong_call("a number is missing", argv[k]);
        if (value)
            *value = argv[++k];
        else if (strcmp(argv[k], "-v") == 0)
            o->verbose = true;
        else if (argv[k][0] == '-' || o->digests)
            return wrong_call(argv[k][0] == '-' ? "unknown option" : "more than one file of digests", argv[k]);
        else
            o->digests = argv[k];
    }
    if (!o->digests)
        return wrong_call("no file of digests is given", NULL);
    if (!o->step || !is_number(o->step, "1"))
        return wrong_call("--step must be a number from 1 on", o->step);
    if (o->grain && !is_number(o->grain, "0"))
        return wrong_call("--grain must be a number from 0 on", o->grain);
    return o->program && !o->program[0] ? wrong_call("no program follows", "--") : 0;
}

/* Reads how the program was started, from the last header of the file. */
static int read_start(const char *digests, char **folder, char **words)
{
    FILE *file = fopen(digests, "re");
    char *line = NULL;
    size_t room = 0;
    int n = 0;
    if (!file)
        return -1;
    for (ssize_t length; (length = getline(&line, &room, file)) > 0;) {
        line[length - 1] = line[length - 1] == '\n' ? '\0' : line[length - 1];
        if (strcmp(line, "# trek digests 1") == 0) {
            while (n > 0)
                free(words[--n]);
            free(*folder);
            *folder = NULL;
        } else if (strncmp(line, "# folder ", 9) == 0) {
            *folder = strdup(line + 9);
        } else if (strncmp(line, "# program ", 10) == 0 && n == 0) {
            words[n++] = strdup(line + 10);
        } else if (strncmp(line, "# argument ", 11) == 0 && n > 0 && n + 1 < MOST_WORDS) {
            words[n++] = strdup(line + 11);
        }
    }
    words[n] = NULL;
    free(line);
    fclose(file);
    return n;
}

static void start(const options *o, const char *digests, const char *report, const char *folder, char *const *words)
{
    char asked[64];
    snprintf(asked, sizeof asked, "%s%s%s", o->step, o->grain ? ":" : "", o->grain ? o->grain : "");
    bool set = setenv("TREK_REPLAY", asked, 1) == 0 && setenv("TREK_REPLAY_DIGESTS", digests, 1) == 0 &&
        setenv("TREK_REPLAY_REPORT", report, 1) == 0;
    if (set && !o->verbose)
        set = freopen("/dev/null", "w", stdout) != NULL;
    if (set && (!folder || chdir(folder) == 0))
        execvp(words[0], words);
    fprintf(stderr, "trek-replay: %s cannot be started%s%s: %s\n", words[0], folder ? " in " : "", folder ? folder : "",
            strerror(errno));
    _exit(127);
}

/* Prints the report. Returns the exit status. */
static int show(const char *report)
{
    FILE *file = fopen(report, "re");
    char line[1024];
    int lines = 0;
    bool recorded = false;
    for (; file && fgets(line, sizeof line, file); lines++) {
        fputs(line, stdout);
        const char *what = strchr(line, ':');
        recorded |= strncmp(line, "step ", 5) == 0 && what && strcmp(what, ": as recorded\n") == 0;
    }
    if (file)
        fclose(file);
    if (lines == 0)
        fprintf(stderr, "trek-replay: the program did not come to the step; -v shows what it prints\n");
    return lines == 0 ? FAILED : recorded ? AS_RECORDED : FOUND;
}

static int replay(const options *o, const char *digests, const char *folder, char *const *words)
{
    char report[] = "/tmp/trek-replay-XXXXXX";
    int file = mkstemp(report), ended = 0;
    if (file < 0) {
        fprintf(stderr, "trek-replay: %s cannot be made: %s\n", report, strerror(errno));
        return FAILED;
    }
    close(file);
    pid_t child = fork();
    if (child == 0)
        start(o, digests, report, folder, words);
    while (child > 0 && waitpid(child, &ended, 0) < 0 && errno == EINTR)
        ;
    int status = child > 0 ? show(report) : FAILED;
    unlink(report);
    return status;
}

int main(int argc, char **argv)
{
    static char *words[MOST_WORDS];
    options o = { 0 };
    char *folder = NULL;
    if (argc == 2 && (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0))
        return fputs(help, stdout) < 0;
    int wrong = read_options(argc, argv, &o);
    if (wrong)
        return wrong;
    char *digests = realpath(o.digests, NULL);
    int n = digests ? read_start(digests, &folder, words) : -1;
    if (n < 0) {
        fprintf(stderr, "trek-replay: %s cannot be read: %s\n", o.digests, strerror(errno));
        return FAILED;
    }
    if (n == 0 && !o.program) {
        fprintf(stderr, "trek-replay: %s does not say how the program was started; give it behind --\n", o.digests);
        return FAILED;
    }
    int status = replay(&o, digests, o.program ? NULL : folder, o.program ? o.program : words);
    free(digests);
    free(folder);
    for (int k = 0; k < n; k++)
        free(words[k]);
    return status;
}
