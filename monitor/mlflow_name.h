/* SPDX-License-Identifier: Apache-2.0 */
/* Internal. */
#ifndef TREK_MONITOR_MLFLOW_NAME_H
#define TREK_MONITOR_MLFLOW_NAME_H

#include "nn/text.h"

/* The name if MLflow takes it, else one that it takes: what it does not is "_", what is too long is cut. A new string; NULL and
 * MEMORY. */
char *trek_mlflow_name(const char *name);

#endif
