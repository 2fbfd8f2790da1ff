/* SPDX-License-Identifier: Apache-2.0 */
/* What a monitor writes about a run, record by record. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "autograd/var.h"
#include "monitor/monitor_internal.h"
#include "nn/module.h"
#include "nn/module_tree.h"
#include "tensor/version.h"

static void add_arguments(trek_text *line)
{
    trek_text_add(line, ",\"arguments\":[");
    char argument[4096];
    size_t n = 0;
    FILE *file = fopen("/proc/self/cmdline", "re");
    for (int c, k = 0; file && (c = getc(file)) != EOF;) {
        if (c && n + 1 < sizeof argument)
            argument[n++] = (char)c;
        if (c)
            continue;
        argument[n] = '\0';
        n = 0;
        if (k++ == 0) /* the program */
            continue;
        trek_text_add(line, k > 2 ? "," : "");
        trek_monitor_string(line, argument);
    }
    if (file)
        fclose(file);
    trek_text_add(line, "]");
}

static void add_ranks(trek_text *line, const trek_monitor *m)
{
    trek_text_add(line, ",\"ranks\":[");
    for (int k = 0; m->introduced && k < m->local_ranks; k++) {
        char text[16], name[TREK_MONITOR_DEVICE_NAME];
        trek_device device = trek_monitor_device(m, k);
        trek_text_format(line, "%s{\"rank\":%d", k ? "," : "", m->first_rank + k);
        trek_monitor_word(line, "device", trek_device_name(device, text, sizeof text));
        if (trek_monitor_device_name(device, name))
            trek_monitor_word(line, "name", name);
        trek_text_add(line, "}");
    }
    trek_text_add(line, "]");
}

static void write_run(trek_monitor *m)
{
    trek_text line = { 0 };
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    trek_monitor_begin(&line, "run");
    trek_monitor_whole(&line, "version", 1);
    trek_monitor_word(&line, "run", m->run);
    trek_monitor_word(&line, "program", m->program);
    add_arguments(&line);
    trek_monitor_word(&line, "host", host);
    trek_monitor_whole(&line, "pid", (int64_t)getpid());
    trek_monitor_whole(&line, "process", m->process);
    trek_monitor_whole(&line, "processes", m->processes);
    add_ranks(&line, m);
    trek_monitor_whole(&line, "epochs", m->epochs);
    trek_monitor_word(&line, "trek", trek_version());
    trek_monitor_number(&line, "started", m->started);
    trek_monitor_whole(&line, "parameters", m->parameters);
    trek_monitor_write(m, &line);
}

void trek_monitor_introduce(trek_monitor *m) { write_run(m); }

/* --- what a program writes by itself ----------------------------------------------------------- */

static trek_status check(const char *function, const trek_monitor *m, const void *required, const char *what)
{
    if (!m || !required)
        return trek_fail_missing(function, m ? what : "monitor");
    return trek_error_status();
}

static trek_status check_name(const char *function, const trek_monitor *m, const char *name, const void *required,
                              const char *what)
{
    trek_status status = check(function, m, name, "name");
    if (status == TREK_OK && !*name)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: name: it is empty; must have at least one character", function);
    return status == TREK_OK ? check(function, m, required, what) : status;
}

static int64_t kept_epoch(trek_monitor *m)
{
    pthread_mutex_lock(&m->lock);
    int64_t epoch = m->epoch;
    pthread_mutex_unlock(&m->lock);
    return epoch;
}

static int kept_rank(trek_monitor *m)
{
    pthread_mutex_lock(&m->lock);
    int rank = m->first_rank;
    pthread_mutex_unlock(&m->lock);
    return rank;
}

static int64_t step_of(trek_monitor *m, int64_t step)
{
    int64_t own = m->step;
    return step >= 0 ? step : own >= 0 ? own : 0;
}

/* Begins "scalars", up to its values. */
static void begin_scalars(trek_text *line, int64_t step, int64_t epoch, bool at_epoch)
{
    trek_monitor_begin(line, "scalars");
    trek_monitor_whole(line, "step", step);
    trek_monitor_whole(line, "epoch", epoch < 0 ? 0 : epoch);
    trek_text_add(line, at_epoch ? ",\"at\":\"epoch\",\"values\":{" : ",\"values\":{");
}

static void add_value(trek_text *line, bool *first, const char *name, double value)
{
    trek_text_add(line, *first ? "" : ",");
    trek_monitor_string(line, name);
    trek_text_add(line, ":");
    trek_monitor_value(line, value);
    *first = false;
}

trek_status trek_monitor_scalars(trek_monitor *m, int64_t step, const char *const *names, const double *values, int n)
{
    trek_text line = { 0 };
    bool first = true;
    trek_status status = check("monitor_scalars", m, names, "names");
    if (status == TREK_OK)
        status = check("monitor_scalars", m, values, "values");
    for (int k = 0; k < n && status == TREK_OK; k++)
        status = check_name("monitor_scalars", m, names[k], names, "names");
    if (status != TREK_OK || n <= 0)
        return status;
    begin_scalars(&line, step_of(m, step), kept_epoch(m), false);
    for (int k = 0; k < n; k++)
        add_value(&line, &first, names[k], values[k]);
    trek_text_add(&line, "}");
    trek_monitor_write(m, &line);
    return TREK_OK;
}

trek_status trek_monitor_scalar(trek_monitor *m, const char *name, int64_t step, double value)
{
    trek_status status = check_name("monitor_scalar", m, name, name, "name");
    return status == TREK_OK ? trek_monitor_scalars(m, step, &name, &value, 1) : status;
}

trek_status trek_monitor_histogram(trek_monitor *m, const char *name, int64_t step, const trek_tensor *values)
{
    trek_status status = check_name("monitor_histogram", m, name, values, "values");
    return status == TREK_OK ? trek_monitor_histogram_of(m, name, "other", step_of(m, step), values) : status;
}

trek_status trek_monitor_image(trek_monitor *m, const char *name, int64_t step, const trek_tensor *image)
{
    trek_status status = check_name("monitor_image", m, name, image, "image");
    return status == TREK_OK ? trek_monitor_image_of(m, name, step_of(m, step), image) : status;
}

typedef struct histograms {
    trek_monitor *monitor;
    int64_t step;
} histograms;

static trek_status add_histograms(const char *name, trek_var *param, void *arg)
{
    const histograms *h = arg;
    trek_var *grad = trek_var_grad(param);
    trek_status status = trek_monitor_histogram_of(h->monitor, name, "parameter", h->step, trek_var_data(param));
    if (status == TREK_OK && grad)
        status = trek_monitor_histogram_of(h->monitor, name, "gradient", h->step, trek_var_data(grad));
    return status;
}

trek_status trek_monitor_histograms(trek_monitor *m, int64_t step, trek_module *module)
{
    trek_status status = check("monitor_histograms", m, module, "module");
    if (status != TREK_OK)
        return status;
    trek_scope scope = trek_scope_begin(); /* gradients are handed out in a scope */
    status = scope.depth ? trek_module_each_param(module, add_histograms, &(histograms){ m, step_of(m, step) })
        : trek_error_status();
    trek_scope_end(scope);
    return status;
}

trek_status trek_monitor_text(trek_monitor *m, const char *name, int64_t step, const char *text)
{
    trek_text line = { 0 };
    trek_status status = check_name("monitor_text", m, name, text, "text");
    if (status != TREK_OK)
        return status;
    trek_monitor_begin(&line, "text");
    trek_monitor_word(&line, "name", name);
    trek_monitor_whole(&line, "step", step_of(m, step));
    trek_monitor_word(&line, "text", text);
    trek_monitor_write(m, &line);
    return TREK_OK;
}

trek_status trek_monitor_graph(trek_monitor *m, trek_graph *graph)
{
    trek_status status = check("monitor_graph", m, graph, "graph");
    return status == TREK_OK ? trek_monitor_graph_record(m, graph) : status;
}

trek_status trek_monitor_epoch(trek_monitor *m, const trek_epoch_metrics *metrics)
{
    trek_text line = { 0 };
    bool first = true;
    trek_status status = check("monitor_epoch", m, metrics, "metrics");
    if (status != TREK_OK)
        return status;
    begin_scalars(&line, step_of(m, -1), metrics->epoch, true);
    add_value(&line, &first, "loss", metrics->loss);
    if (!isnan(metrics->evaluation_loss))
        add_value(&line, &first, "evaluation_loss", metrics->evaluation_loss);
    add_value(&line, &first, "lr", metrics->lr);
    add_value(&line, &first, "samples_per_s", metrics->samples_per_s);
    add_value(&line, &first, "seconds", metrics->seconds);
    if (metrics->averages && metrics->drift > 0)
        add_value(&line, &first, "drift", metrics->drift);
    for (int k = 0; k < metrics->n_scalars; k++)
        add_value(&line, &first, metrics->scalars[k].name, metrics->scalars[k].value);
    trek_text_add(&line, "}");
    trek_monitor_write(m, &line);
    return TREK_OK;
}

trek_status trek_monitor_event(trek_monitor *m, const char *name, const char *text)
{
    trek_text line = { 0 };
    trek_status status = check_name("monitor_event", m, name, text, "text");
    if (status != TREK_OK)
        return status;
    trek_monitor_begin(&line, "event");
    trek_monitor_word(&line, "name", name);
    trek_monitor_word(&line, "text", text);
    trek_monitor_write(m, &line);
    return TREK_OK;
}

void trek_monitor_log_line(trek_monitor *m, trek_log_level level, const char *text)
{
    static const char *const levels[] = { "error", "warning", "info", "debug" };
    trek_text line = { 0 };
    trek_monitor_begin(&line, "log");
    trek_monitor_word(&line, "level", levels[level]);
    trek_monitor_word(&line, "text", text);
    trek_monitor_whole(&line, "rank", kept_rank(m));
    trek_monitor_write(m, &line);
}

trek_status trek_monitor_log(trek_monitor *m, trek_log_level level, const char *text)
{
    trek_status status = check("monitor_log", m, text, "text");
    if (status == TREK_OK && (unsigned)level > TREK_LOG_LEVEL_DEBUG)
        return trek_fail(TREK_ERR_ARGUMENT, "monitor_log: level: %d; must be a value of trek_log_level", (int)level);
    if (status == TREK_OK)
        trek_monitor_log_line(m, level, text);
    return status;
}

/* The point of trek_graph_flush. */
void trek_monitor_flushed(trek_monitor *m, int64_t epoch, const trek_monitor_point *values, int n)
{
    trek_text line = { 0 };
    bool first = true;
    if (n == 0)
        return;
    begin_scalars(&line, step_of(m, -1), epoch, true);
    for (int k = 0; k < n; k++)
        add_value(&line, &first, values[k].name, values[k].value);
    trek_text_add(&line, "}");
    trek_monitor_write(m, &line);
}
