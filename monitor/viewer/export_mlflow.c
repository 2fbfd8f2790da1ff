/* SPDX-License-Identifier: Apache-2.0 */
/* A watched run in MLflow's file store: FOLDER/EXPERIMENT/meta.yaml, FOLDER/EXPERIMENT/RUN/meta.yaml, and in the
 * run's folder metrics/NAME (lines "milliseconds value step"), params/NAME, tags/NAME and artifacts/. */
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "monitor/export.h"
#include "monitor/viewer/event_file.h"
#include "monitor/viewer/mlflow_name.h"
#include "monitor/viewer/run_numbers.h"
#include "nn/json.h"
#include "tensor/memory_internal.h"
#include "tensor/sha256.h"
#include "tensor/status_internal.h"

static const char function[] = "export_mlflow";

/* A curve: its own name, the name of its file, and its lines. */
typedef struct metric {
    char *name, *file;
    trek_text lines;
} metric;

typedef struct store {
    char *root, *aside, *folder;     /* root: the store; aside: where the run is written; folder: its final place in the store */
    char experiment[32], run[33];
    metric *metrics;
    int n_metrics, cap_metrics;
    trek_run_steps steps;
    int64_t step;
    double time;                     /* of the current record */
    trek_text log;
} store;

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)about, (void)kind, (void)place;
    return remove(path);
}

static void remove_folder(const char *path) { nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT); }

static void clear_store(store *s)
{
    for (int k = 0; k < s->n_metrics; k++) {
        trek_free(s->metrics[k].name);
        trek_free(s->metrics[k].file);
        trek_text_clear(&s->metrics[k].lines);
    }
    trek_free(s->metrics);
    trek_run_steps_clear(&s->steps);
    trek_text_clear(&s->log);
    if (s->aside)
        remove_folder(s->aside);
    trek_free(s->root);
    trek_free(s->aside);
    trek_free(s->folder);
}

/* --- files ------------------------------------------------------------------------------------- */

static trek_status failed(const char *path) { return trek_fail(TREK_ERR_IO, "%s: %s: %s", function, path, strerror(errno)); }

/* Makes all folders that contain the file. */
static trek_status make_folders(char *path)
{
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        bool made = mkdir(path, 0777) == 0 || errno == EEXIST;
        if (!made)
            failed(path);
        *slash = '/';
        if (!made)
            return TREK_ERR_IO;
    }
    return TREK_OK;
}

/* Takes ownership of the text. */
static trek_status put(const store *s, const char *group, const char *name, trek_text *text)
{
    char *path = trek_format("%s/%s%s", s->folder, group, name);
    trek_status status = path ? make_folders(path) : TREK_ERR_MEMORY;
    if (status == TREK_OK)
        status = trek_run_write_file(function, path, text);
    trek_text_clear(text);
    trek_free(path);
    return status;
}

static trek_status put_words(const store *s, const char *group, const char *name, const char *words)
{
    trek_text text = { 0 };
    if (!words)
        return TREK_OK;
    trek_text_add(&text, words);
    return put(s, group, name, &text);
}

static trek_status put_number(const store *s, const char *group, const char *name, int64_t number)
{
    char digits[32];
    snprintf(digits, sizeof digits, "%lld", (long long)number);
    return number >= 0 ? put_words(s, group, name, digits) : TREK_OK;
}

/* --- curves ------------------------------------------------------------------------------------ */

/* Returns whether one is the folder that contains the other, or they are the same. */
static bool collide(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), least = n < m ? n : m;
    return strncmp(a, b, least) == 0 && (n == m || (n > m ? a[m] : b[n]) == '/');
}

/* Returns a file name for each curve. If two would be the same, or one the other's folder, the later one gets "_"
 * behind its first part. */
static char *file_of(const store *s, const char *name)
{
    char *file = trek_mlflow_name(name);
    for (int k = 0; file && k < s->n_metrics;) {
        if (!collide(s->metrics[k].file, file)) {
            k++;
            continue;
        }
        size_t first = strcspn(file, "/");
        char *other = trek_format("%.*s_%s", (int)first, file, file + first);
        trek_free(file);
        file = other;
        k = 0;
    }
    return file;
}

static metric *metric_of(store *s, const char *name)
{
    for (int k = 0; k < s->n_metrics; k++)
        if (strcmp(s->metrics[k].name, name) == 0)
            return &s->metrics[k];
    metric made = { trek_strdup(name), file_of(s, name), { 0 } };
    if (made.name && made.file &&
        trek_array_grow(&s->metrics, &s->cap_metrics, s->n_metrics + 1, sizeof *s->metrics) == TREK_OK) {
        s->metrics[s->n_metrics] = made;
        return &s->metrics[s->n_metrics++];
    }
    trek_free(made.name);
    trek_free(made.file);
    return NULL;
}

static long long milliseconds(double time) { return isnan(time) ? 0 : llround(time * 1000); }

static void take_number(const char *name, double value, void *arg)
{
    store *s = arg;
    char digits[40];
    metric *m = metric_of(s, name);
    if (m)
        trek_text_format(&m->lines, "%lld %s %lld\n", milliseconds(s->time), trek_text_number(value, digits), (long long)s->step);
}

static trek_status take_scalars(store *s, const trek_run_record *r)
{
    bool at_epoch = r->at && strcmp(r->at, "epoch") == 0;
    for (int k = 0; k < r->n_values; k++) {
        char before[40] = "";
        if (r->process > 0)
            snprintf(before, sizeof before, "process-%d/", r->process);
        char *name = trek_format("%s%s%s", before, at_epoch ? "epoch/" : "", r->values[k].name);
        if (name)
            take_number(name, r->values[k].value, s);
        trek_free(name);
    }
    return trek_error_status();
}

/* --- artifacts --------------------------------------------------------------------------------- */

static trek_status put_image(const store *s, const trek_run_record *r)
{
    trek_text png = { 0 };
    char *name = r->name && r->png ? trek_mlflow_name(r->name) : NULL;
    char *file = name ? trek_format("%s/%lld.png", name, (long long)s->step) : NULL;
    trek_status status = file && trek_base64_decode(&png, r->png) ? put(s, "artifacts/images/", file, &png) : trek_error_status();
    trek_text_clear(&png);
    trek_free(file);
    trek_free(name);
    return status;
}

static void log_line(store *s, const trek_run_record *r)
{
    const char *what = r->kind == TREK_RUN_LOG ? r->level : r->name;
    trek_text_format(&s->log, "%lld.%03lld process %d %s: %s\n", milliseconds(r->time) / 1000, milliseconds(r->time) % 1000,
                     r->process, what ? what : "", r->text ? r->text : "");
}

static trek_status take(const trek_run_record *record, void *arg)
{
    store *s = arg;
    s->time = record->time;
    s->step = trek_run_step(&s->steps, record);
    trek_run_numbers(record, take_number, s);
    switch (record->kind) {
    case TREK_RUN_SCALARS: return take_scalars(s, record);
    case TREK_RUN_IMAGE: return put_image(s, record);
    case TREK_RUN_LOG:
    case TREK_RUN_EVENT:
    case TREK_RUN_TEXT: log_line(s, record); break;
    default: break;
    }
    return trek_error_status();
}

/* --- the run's own ----------------------------------------------------------------------------- */

static void add_field(trek_text *out, const char *key, const char *value)
{
    trek_text_format(out, "%s: ", key);
    trek_json_string(out, value); /* YAML can read this as well */
    trek_text_add(out, "\n");
}

static void add_address(trek_text *out, const char *key, const char *path)
{
    trek_text_format(out, "%s: \"file://", key);
    for (; *path; path++)
        if (strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._-~", *path))
            trek_text_bytes(out, path, 1);
        else
            trek_text_format(out, "%%%02X", (unsigned)(unsigned char)*path);
    trek_text_add(out, "\"\n");
}

/* RUNNING 1, FINISHED 3, FAILED 4, KILLED 5. */
static int status_of(trek_run_status status)
{
    switch (status) {
    case TREK_RUN_DONE: return 3;
    case TREK_RUN_FAILED: return 4;
    case TREK_RUN_STOPPED:
    case TREK_RUN_DIED: return 5;
    default: return 1;
    }
}

static trek_status put_meta(const store *s, const trek_run_state *seen, const char *name)
{
    trek_text out = { 0 };
    char *artifacts = trek_format("%s/%s/%s/artifacts", s->root, s->experiment, s->run);
    int status = status_of(seen->status);
    if (!artifacts)
        return TREK_ERR_MEMORY;
    add_address(&out, "artifact_uri", artifacts);
    trek_free(artifacts);
    if (status == 1)
        trek_text_add(&out, "end_time: null\n");
    else
        trek_text_format(&out, "end_time: %lld\n", milliseconds(seen->heard));
    add_field(&out, "entry_point_name", "");
    add_field(&out, "experiment_id", s->experiment);
    add_field(&out, "lifecycle_stage", "active");
    add_field(&out, "run_id", s->run);
    add_field(&out, "run_name", name);
    add_field(&out, "run_uuid", s->run);
    add_field(&out, "source_name", seen->program ? seen->program : "");
    trek_text_add(&out, "source_type: 4\n");
    add_field(&out, "source_version", "");
    trek_text_format(&out, "start_time: %lld\nstatus: %d\ntags: []\n", milliseconds(seen->started), status);
    add_field(&out, "user_id", "");
    return put(s, "", "meta.yaml", &out);
}

static trek_status put_params(const store *s, const trek_run_state *seen)
{
    trek_text words = { 0 };
    for (int k = 0; k < seen->n_arguments; k++)
        trek_text_format(&words, "%s%s", k ? " " : "", seen->arguments[k]);
    put_words(s, "params/", "arguments", words.data);
    trek_text_clear(&words);
    put_number(s, "params/", "epochs", seen->epochs > 0 ? seen->epochs : -1);
    put_number(s, "params/", "parameters", seen->parameters);
    put_number(s, "params/", "processes", seen->n_processes);
    put_number(s, "params/", "ranks", seen->n_ranks);
    for (int k = 0; k < seen->n_ranks; k++) {
        char name[48];
        snprintf(name, sizeof name, "rank/%lld/device", (long long)seen->ranks[k].rank);
        put_words(s, "params/", name, seen->ranks[k].name ? seen->ranks[k].name : seen->ranks[k].device);
    }
    return trek_error_status();
}

static trek_status put_tags(const store *s, const trek_run_state *seen, const char *name)
{
    put_words(s, "tags/", "mlflow.runName", name);
    put_words(s, "tags/", "mlflow.source.name", seen->program);
    put_words(s, "tags/", "mlflow.source.type", "LOCAL");
    put_words(s, "tags/", "trek.status", trek_run_status_text(seen->status));
    put_words(s, "tags/", "trek.version", seen->trek);
    put_words(s, "tags/", "trek.error", seen->error);
    put_words(s, "tags/", "trek.host", seen->processes[0].host);
    return trek_error_status();
}

static trek_status put_all(store *s, const trek_run_state *seen, const char *name)
{
    for (int k = 0; k < s->n_metrics && trek_error_status() == TREK_OK; k++)
        put(s, "metrics/", s->metrics[k].file, &s->metrics[k].lines);
    if (seen->graph)
        put_words(s, "artifacts/", "graph.svg", seen->graph->svg);
    if (s->log.length)
        put(s, "artifacts/", "log.txt", &s->log);
    if (put_params(s, seen) == TREK_OK && put_tags(s, seen, name) == TREK_OK)
        put_meta(s, seen, name);
    return trek_error_status();
}

/* --- where it lies ----------------------------------------------------------------------------- */

static void digest(const char *text, char *hex, int bytes)
{
    unsigned char sum[32];
    trek_sha256(text, strlen(text), sum);
    for (int k = 0; k < bytes; k++)
        snprintf(hex + 2 * k, 3, "%02x", sum[k]);
}

/* Returns whether the experiment in that folder has this name, either plain or in quotes, as MLflow and this file
 * write it. */
static bool has_name(const char *root, const char *folder, const char *name)
{
    char line[1024], plain[600], single[600];
    char *path = trek_format("%s/%s/meta.yaml", root, folder);
    FILE *file = path ? fopen(path, "re") : NULL;
    trek_text quoted = { 0 };
    bool found = false;
    add_field(&quoted, "name", name);
    snprintf(plain, sizeof plain, "name: %s\n", name);
    snprintf(single, sizeof single, "name: '%s'\n", name);
    while (file && !found && fgets(line, sizeof line, file))
        found = strcmp(line, plain) == 0 || strcmp(line, single) == 0 || (quoted.data && strcmp(line, quoted.data) == 0);
    if (file)
        fclose(file);
    trek_text_clear(&quoted);
    trek_free(path);
    return found;
}

static bool find_experiment(store *s, const char *name)
{
    DIR *folder = opendir(s->root);
    bool found = false;
    for (struct dirent *d; folder && !found && (d = readdir(folder));) {
        found = d->d_name[0] != '.' && strlen(d->d_name) < sizeof s->experiment && has_name(s->root, d->d_name, name);
        if (found)
            snprintf(s->experiment, sizeof s->experiment, "%.31s", d->d_name);
    }
    if (folder)
        closedir(folder);
    return found;
}

/* The experiment is named after the program, so that runs of one program can be compared. */
static trek_status make_experiment(store *s, const char *name, double started)
{
    trek_text out = { 0 };
    if (find_experiment(s, name))
        return TREK_OK;
    char hex[17], *path;
    digest(name, hex, 8);
    snprintf(s->experiment, sizeof s->experiment, "%018llu", strtoull(hex, NULL, 16) % 1000000000000000000ull);
    if (!(path = trek_format("%s/%s", s->root, s->experiment)))
        return TREK_ERR_MEMORY;
    add_address(&out, "artifact_location", path);
    trek_text_format(&out, "creation_time: %lld\n", milliseconds(started));
    add_field(&out, "experiment_id", s->experiment);
    trek_text_format(&out, "last_update_time: %lld\n", milliseconds(started));
    add_field(&out, "lifecycle_stage", "active");
    add_field(&out, "name", name);
    trek_free(path);
    if (!(path = trek_format("%s/%s/meta.yaml", s->root, s->experiment)))
        return TREK_ERR_MEMORY;
    trek_status status = make_folders(path);
    if (status == TREK_OK)
        status = trek_run_write_file(function, path, &out);
    trek_text_clear(&out);
    trek_free(path);
    return status;
}

/* Replaces what an earlier export has left. */
static trek_status move_in(const store *s)
{
    char *place = trek_format("%s/%s/%s", s->root, s->experiment, s->run);
    if (!place)
        return TREK_ERR_MEMORY;
    remove_folder(place);
    trek_status status = rename(s->folder, place) == 0 ? TREK_OK : failed(place);
    trek_free(place);
    return status;
}

/* The same run gets the same identifier every time. */
static trek_status name_run(store *s, const trek_run_state *seen, const char *name)
{
    char *own = trek_format("%s %lld %s", name, milliseconds(seen->started),
                            seen->processes[0].host ? seen->processes[0].host : "");
    if (!own)
        return TREK_ERR_MEMORY;
    digest(own, s->run, 16);
    trek_free(own);
    return make_experiment(s, seen->program && *seen->program ? seen->program : "trek", seen->started);
}

static trek_status begin(store *s, const char *mlruns)
{
    char whole[PATH_MAX];
    if (mkdir(mlruns, 0777) != 0 && errno != EEXIST)
        return failed(mlruns);
    if (!realpath(mlruns, whole))
        return failed(mlruns);
    char *aside = trek_format("%s/.trek-XXXXXX", whole);
    if (aside && !mkdtemp(aside)) {
        failed(aside);
        trek_free(aside);
        return TREK_ERR_IO;
    }
    s->root = trek_strdup(whole);
    s->aside = aside;
    s->folder = aside ? trek_format("%s/run", aside) : NULL;
    if (!s->root || !s->folder)
        return TREK_ERR_MEMORY;
    return mkdir(s->folder, 0777) == 0 ? TREK_OK : failed(s->folder); /* this one should be readable by everyone */
}

trek_status trek_export_mlflow(const char *run, const char *mlruns)
{
    store s = { 0 };
    if (!run || !mlruns)
        return trek_fail_missing(function, run ? "mlruns" : "run");
    trek_status status = trek_error_status() == TREK_OK ? begin(&s, mlruns) : trek_error_status();
    trek_run_reader *r = status == TREK_OK
        ? trek_run_read(function, run, &(trek_run_reader_opts){ .most_points = 16, .on_record = take, .arg = &s }) : NULL;
    if (r) {
        const trek_run_state *seen = trek_run_reader_state(r);
        const char *slash = strrchr(run, '/'), *name = seen->run ? seen->run : slash ? slash + 1 : run;
        status = name_run(&s, seen, name);
        if (status == TREK_OK && (status = put_all(&s, seen, name)) == TREK_OK)
            status = move_in(&s);
    } else {
        status = trek_error_status();
    }
    trek_run_reader_free(&r);
    clear_store(&s);
    return status;
}
