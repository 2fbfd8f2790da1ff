/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs share that feed bytes to a parser: libFuzzer calls LLVMFuzzerTestOneInput, or replay.c does. */
#ifndef TREK_TESTS_FUZZ_H
#define TREK_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* The path of a file that holds these bytes, until the next call. */
const char *fuzz_file(const uint8_t *data, size_t size);
/* Ends the program where something does not hold that must. */
void fuzz_expect(bool holds, const char *what);
/* After a call that makes something or reports an error, and never both: clears the error. */
void fuzz_settle(bool made);

#endif
