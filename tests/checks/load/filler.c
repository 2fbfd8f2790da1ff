/* SPDX-License-Identifier: Apache-2.0 */
/* Takes most of what a process has of static TLS for libraries that are loaded late. */
__thread char filler_bytes[1216] __attribute__((visibility("default")));
char *filler_get(void);
__attribute__((visibility("default"))) char *filler_get(void) { return filler_bytes; }
