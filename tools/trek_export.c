/* SPDX-License-Identifier: Apache-2.0 */
/* trek-export: writes a watched run in another program's format. */
#include <stdio.h>
#include <string.h>

#include "monitor/export.h"
#include "monitor/report.h"
#include "tensor/print.h"
#include "tensor/tensor.h"

enum { USAGE = 2 };

static const char help[] =
    "usage: trek-export KIND RUN TO\n"
    "       trek-export report RUN... TO\n"
    "       trek-export metrics RUN\n"
    "\n"
    "Writes a watched run, which is a folder TREK_LOG_DIR/NAME, in the format of another program. The run may still continue.\n"
    "\n"
    "  csv          a table with a row for each step, and a column for each curve and each figure of ranks, GPUs and system\n"
    "  tensorboard  TensorBoard's event file; TO must contain \"tfevents\", as in boards/first/events.out.tfevents.1\n"
    "  mlflow       MLflow's file store, the folder TO, which is created if needed\n"
    "  report       the live page of all named runs as one HTML file\n"
    "  metrics      the progress of the run as OpenMetrics text for Prometheus, on standard output\n"
    "\n"
    "Exit status: 0; 1 if a run cannot be read or the result cannot be written; 2 for a wrong call.\n";

static int wrong_call(const char *what, const char *which)
{
    fprintf(stderr, "trek-export: %s%s%s\ntrek-export --help shows how to call it\n", what, which ? ": " : "",
            which ? which : "");
    return USAGE;
}

static trek_status print_metrics(const char *run)
{
    char *text = trek_export_open_metrics(run);
    if (!text)
        return trek_error_status();
    bool printed = fputs(text, stdout) >= 0 && fflush(stdout) == 0;
    trek_string_free(&text);
    return printed ? TREK_OK : TREK_ERR_IO;
}

static int done(trek_status status)
{
    if (status == TREK_OK)
        return 0;
    fprintf(stderr, "trek-export: %s\n", trek_error_status() != TREK_OK ? trek_error() : "standard output cannot be written");
    return 1;
}

int main(int argc, char **argv)
{
    static const struct { const char *name; trek_status (*write)(const char *run, const char *to); } kinds[] = {
        { "csv", trek_export_csv }, { "tensorboard", trek_export_tensorboard }, { "mlflow", trek_export_mlflow },
    };
    if (argc == 2 && (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0))
        return fputs(help, stdout) < 0;
    if (argc < 2)
        return wrong_call("no kind is given", NULL);
    if (strcmp(argv[1], "metrics") == 0)
        return argc == 3 ? done(print_metrics(argv[2])) : wrong_call("metrics needs exactly one run", NULL);
    if (strcmp(argv[1], "report") == 0)
        return argc >= 4 ? done(trek_report_write(argv[argc - 1], (const char *const *)(argv + 2), argc - 3))
            : wrong_call("report needs runs and the file to write", NULL);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (strcmp(argv[1], kinds[k].name) == 0)
            return argc == 4 ? done(kinds[k].write(argv[2], argv[3]))
                : wrong_call("a run and the file to write are needed", argv[1]);
    return wrong_call("unknown kind", argv[1]);
}
