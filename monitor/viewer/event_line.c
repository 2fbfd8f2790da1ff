/* SPDX-License-Identifier: Apache-2.0 */
/* What a run that is being recorded writes for TensorBoard. */
#include "monitor/viewer.h"
#include "monitor/viewer/event_file.h"

trek_status trek_viewer_event_begin(trek_text *out, double time)
{
    trek_event_begin(out, time);
    return TREK_OK;
}

trek_status trek_viewer_event_line(trek_text *out, const char *line, size_t length, int process, int64_t *step)
{
    trek_run_record record;
    trek_status status = trek_run_record_read(&record, line, length);
    if (status != TREK_OK)
        return status;
    record.process = process;
    *step = record.step > *step ? record.step : *step;
    trek_event_add(out, &record, *step);
    trek_run_record_clear(&record);
    return TREK_OK;
}
