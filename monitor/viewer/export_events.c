/* SPDX-License-Identifier: Apache-2.0 */
/* A watched run as TensorBoard's event file. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "monitor/viewer/event_file.h"
#include "monitor/export.h"
#include "monitor/viewer/run_reader.h"
#include "nn/replace_file.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

enum { PIECE = 1 << 20 };

typedef struct writing {
    const char *path;
    int file;
    int64_t step;             /* the last known step, for records without one */
    trek_text text;
    bool begun;
} writing;

static trek_status write_out(writing *w)
{
    trek_status status = w->text.failed ? TREK_ERR_MEMORY : TREK_OK;
    for (size_t done = 0; status == TREK_OK && done < w->text.length;) {
        ssize_t written = write(w->file, w->text.data + done, w->text.length - done);
        if (written > 0)
            done += (size_t)written;
        else if (errno != EINTR)
            status = trek_fail(TREK_ERR_IO, "export_tensorboard: %s: %s", w->path, strerror(errno));
    }
    trek_text_clear(&w->text);
    return status;
}

static trek_status take(const trek_run_record *record, void *arg)
{
    writing *w = arg;
    if (!w->begun && !isnan(record->time)) {
        trek_event_begin(&w->text, record->time);
        w->begun = true;
    }
    w->step = record->step > w->step ? record->step : w->step;
    trek_event_add(&w->text, record, w->step);
    return w->text.length < PIECE && !w->text.failed ? TREK_OK : write_out(w);
}

static trek_status convert(const char *run, writing *w)
{
    trek_run_reader *r = trek_run_reader_new(run, &(trek_run_reader_opts){ .most_points = 16, .on_record = take, .arg = w });
    trek_status status = r ? trek_run_reader_catch_up(r) : trek_error_status();
    if (status == TREK_OK && trek_run_reader_state(r)->n_processes == 0)
        status = trek_fail(TREK_ERR_IO, "export_tensorboard: run: %s does not contain a watched run", run);
    trek_run_reader_free(&r);
    return status == TREK_OK ? write_out(w) : status;
}

trek_status trek_export_tensorboard(const char *run, const char *path)
{
    writing w = { .path = path };
    trek_file_replacement file;
    if (!run || !path)
        return trek_fail_missing("export_tensorboard", run ? "path" : "run");
    trek_status status = trek_replace_begin(&file, path);
    if (status != TREK_OK)
        return status;
    w.file = file.file;
    status = convert(run, &w);
    trek_text_clear(&w.text);
    return trek_replace_end(&file, status);
}
