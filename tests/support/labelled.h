/* SPDX-License-Identifier: Apache-2.0 */
/* Samples that have a label each, as several test programs train on them; their loss, their epochs, and whether two trainings
 * have come to the same. */
#ifndef TREK_TESTS_SUPPORT_LABELLED_H
#define TREK_TESTS_SUPPORT_LABELLED_H

#include "data/loader.h"
#include "graph/graph_loader.h"

/* Field "x" has rows of `width` numbers of that stream of test_number, and "label" their classes in turn. */
trek_dataset *labelled_rows(uint32_t stream, int samples, int width, int classes);
/* Field "x" has rows of `length` tokens, as f32, and "label" the token that follows them. */
trek_dataset *labelled_tokens(int samples, int length, int vocabulary);
/* A loss function: the cross-entropy of the output, in f32, and the batch's labels. */
trek_var *labelled_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg);
/* Trains for an epoch, with so many passes in a step, and fewer in the last one if they do not come out even (0 and 1: one). */
trek_status labelled_epoch(trek_graph *graph, int64_t number, int passes);

/* The elements of a module's parameters, or of its parameters and buffers (tests/support/noted.h). */
typedef struct elements {
    int n;
    double values[1 << 18];
} elements;
void elements_of_params(trek_graph *graph, elements *to);
void elements_of_state(trek_graph *graph, elements *to);
/* The case fails if any element differs. The text says what was trained. */
__attribute__((format(printf, 3, 4)))
void elements_expect(const elements *got, const elements *expected, const char *format, ...);

#endif
