// The commands of gpu_sim_ctl, carried out in the server.
#pragma once

#include <string>
#include <vector>

#include "tests/gpu_sim/server/call_log.h"
#include "tests/gpu_sim/server/device_pool.h"
#include "tests/gpu_sim/wire.h"

namespace rekindle::gpu_sim {

// The command's words. False: *answer says what is wrong with them.
bool RunControl(const std::vector<std::string>& words, DevicePool* pool, CallLog* log, Settings* settings,
                std::string* answer);

// Sets one of the settings that the server's command line and `set` share; false if there is none of that
// name.
bool ChangeSetting(const std::string& name, const std::string& value, DevicePool* pool, Settings* settings);

}  // namespace rekindle::gpu_sim
