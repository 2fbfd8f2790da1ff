/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard's event files. A record consists of a length, its masked CRC-32C, an Event message, and the message's
 * masked CRC (TensorFlow's core/lib/io/record_writer.cc, core/util/event.proto, core/framework/summary.proto). */
#ifndef TREK_MONITOR_EVENT_FILE_H
#define TREK_MONITOR_EVENT_FILE_H

#include "monitor/base64.h"
#include "monitor/viewer/run_record.h"
#include "nn/text.h"

/* Appends the record that a file begins with. */
void trek_event_begin(trek_text *out, double time);
/* Appends what a record of a watched run means in TensorBoard. `step` applies if the record has none itself. Kinds
 * without a counterpart append nothing. */
void trek_event_add(trek_text *out, const trek_run_record *record, int64_t step);

/* Computes the CRC-32C (Castagnoli) of this many bytes. */
uint32_t trek_crc32c(const void *data, size_t bytes);

#endif
