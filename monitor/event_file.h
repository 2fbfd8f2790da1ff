/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard's event files: records of a length, a masked CRC-32C of it, an Event message, and its masked CRC (TensorFlow's
 * core/lib/io/record_writer.cc, core/util/event.proto, core/framework/summary.proto). Internal. */
#ifndef TREK_MONITOR_EVENT_FILE_H
#define TREK_MONITOR_EVENT_FILE_H

#include "monitor/base64.h"
#include "monitor/run_record.h"
#include "nn/text.h"

/* Adds the record that a file begins with. */
void trek_event_begin(trek_text *out, double time);
/* What a record of a watched run says to TensorBoard, at this step where it tells none itself; nothing of kinds that it has no
 * place for. */
void trek_event_add(trek_text *out, const trek_run_record *record, int64_t step);

/* CRC-32C (Castagnoli) of so many bytes. */
uint32_t trek_crc32c(const void *data, size_t bytes);

#endif
