/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that layers share. */
#include <inttypes.h>
#include <stdio.h>

#include "nn/layers_internal.h"
#include "nn/module_internal.h"

trek_module *trek_layer_finish(trek_module *module)
{
    module = trek_module_check(module);
    if (module && module->own->klass->reset && module->own->klass->reset(module) != TREK_OK)
        trek_module_free(&module);
    return module;
}

trek_status trek_layer_positive(const char *layer, const char *what, int64_t value)
{
    if (value >= 1)
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT, "%s: %s: %" PRId64 "; must be at least 1", layer, what, value);
}

char *trek_layer_number(double value, char *text)
{
    char *to = text;
    snprintf(text, 32, "%g", value);
    for (const char *from = text; *from; from++) {
        bool plain = (*from >= '0' && *from <= '9') || (*from >= 'a' && *from <= 'z') || *from == '-' || *from == '+';
        if (plain)
            *to++ = *from;
        else if (to == text || to[-1] != '.') /* the locale's decimal point, which may have several bytes */
            *to++ = '.';
    }
    *to = 0;
    return text;
}
