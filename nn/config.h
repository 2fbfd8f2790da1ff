/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of models as Hugging Face's programs write them (config.json): a JSON object of which the numbers, truth values
 * and texts that stand in it directly are kept.
 *
 *     trek_config *config = trek_config_read("gpt2/config.json");
 *     int64_t layers, heads;
 *     trek_config_integer(config, "n_layer", &layers);
 *     trek_config_integer(config, "n_head", &heads); */
#ifndef TREK_NN_CONFIG_H
#define TREK_NN_CONFIG_H

#include "tensor/status.h"

TREK_BEGIN

typedef struct trek_config trek_config;

/* FORMAT: no well-formed JSON object, one with a key twice, or more than 16 MB; IO, MEMORY. */
TREK_API trek_config *trek_config_read(const char *path);
TREK_API void trek_config_free(trek_config **config);

/* Whether there is such a key; what it holds does not matter (lists and objects are there, too). */
TREK_API bool trek_config_has(const trek_config *config, const char *key);
/* Each leaves *value as it is on failure: ARGUMENT, naming file and key, if it is not there or is something else. A number
 * that is written as an integer is one for both of the first two. A text lives as long as the configuration. */
TREK_API trek_status trek_config_integer(const trek_config *config, const char *key, int64_t *value);
TREK_API trek_status trek_config_number(const trek_config *config, const char *key, double *value);
TREK_API trek_status trek_config_bool(const trek_config *config, const char *key, bool *value);
TREK_API trek_status trek_config_text(const trek_config *config, const char *key, const char **value);

TREK_END

#endif
