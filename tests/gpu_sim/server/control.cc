#include "tests/gpu_sim/server/control.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace rekindle::gpu_sim {
namespace {

bool Number(const std::string& text, uint64_t* number) {
  char* end = nullptr;
  errno = 0;
  *number = std::strtoull(text.c_str(), &end, 10);
  return !text.empty() && *end == '\0' && errno == 0 && text[0] != '-';
}

bool ParseFault(const std::vector<std::string>& words, PlannedFault* planned, std::string* answer) {
  if (words.size() < 2 || !CallFromName(words[1], &planned->call)) {
    *answer =
        "inject CALL: which call? One of lock, checkpoint, restore, unlock, state, restore-tid, init, "
        "context, memalloc, memfree, launch.";
    return false;
  }
  Fault& fault = planned->fault;
  std::string when;
  for (size_t i = 2; i < words.size(); ++i) {
    const std::string& word = words[i];
    uint64_t number = 0;
    const bool has_number = i + 1 < words.size() && Number(words[i + 1], &number);
    if (word == "--pid" && has_number) {
      planned->pid = static_cast<pid_t>(number), ++i;
    } else if (word == "--nth" && has_number) {
      planned->nth = number, ++i;
    } else if (word == "--fail" && has_number) {
      fault.kind = FaultKind::kFail, fault.code = static_cast<int32_t>(number), ++i;
    } else if (word == "--delay-ms" && has_number) {
      fault.kind = FaultKind::kDelay, fault.delay_ms = static_cast<uint32_t>(number), ++i;
    } else if (word == "--hang") {
      fault.kind = FaultKind::kHang;
    } else if (word == "--kill-target") {
      fault.kind = FaultKind::kKillTarget;
    } else if (word == "--kill-caller") {
      fault.kind = FaultKind::kKillCaller;
    } else if (word == "--wrong-success") {
      fault.kind = FaultKind::kWrongSuccess;
    } else if (word == "--no-effect") {
      fault.kind = FaultKind::kNoEffect;
    } else if (word == "--then-failed") {
      fault.then_failed = 1;
    } else if (word == "--answers-late") {
      fault.answers_late = 1;
    } else if (word == "--until-cleared") {
      fault.until_cleared = 1;
    } else if (word == "--when" && i + 1 < words.size()) {
      when = words[++i];
    } else {
      *answer = "inject: '" + word + "' is no option, or its number is missing";
      return false;
    }
  }
  if (fault.kind == FaultKind::kNone) {
    *answer =
        "inject: what is to go wrong? --fail CODE, --delay-ms N, --hang, --kill-target, --kill-caller, "
        "--wrong-success or --no-effect";
    return false;
  }
  fault.time =
      fault.kind == FaultKind::kFail && fault.then_failed == 0 ? FaultTime::kBefore : FaultTime::kDuring;
  if (when == "before") {
    fault.time = FaultTime::kBefore;
  } else if (when == "during") {
    fault.time = FaultTime::kDuring;
  } else if (when == "after") {
    fault.time = FaultTime::kAfter;
  } else if (!when.empty()) {
    *answer = "inject --when: before, during or after, not '" + when + "'";
    return false;
  }
  return true;
}

}  // namespace

bool ChangeSetting(const std::string& name, const std::string& value, DevicePool* pool, Settings* settings) {
  if (name == "driver-text") {
    std::strncpy(settings->driver_text, value.c_str(), sizeof(settings->driver_text) - 1);
    return true;
  }
  if (name == "lost-gpu" || name == "silent-gpu" || name == "untold-gpu") {
    gpu::cuda::Uuid uuid;
    const bool none = value == "none";
    if (!none && !UuidFromText(value, &uuid)) return false;
    const gpu::cuda::Uuid* which = none ? nullptr : &uuid;
    return name == "lost-gpu"     ? pool->SetLost(which)
           : name == "silent-gpu" ? pool->SetSilent(which)
                                  : pool->SetUntold(which);
  }
  uint64_t number = 0;
  if (!Number(value, &number)) return false;
  if (name == "driver-version") {
    settings->driver_version = static_cast<int32_t>(number);
  } else if (name == "context-bytes") {
    pool->set_context_bytes(number);
  } else if (name == "managed-can-be-checkpointed") {
    settings->managed_can_be_checkpointed = number != 0;
  } else if (name == "pairs-name-visible-gpus") {
    settings->pairs_name_visible_gpus = number != 0;
  } else if (name == "pids-from-outside") {
    settings->pids_from_outside = number != 0;
  } else if (name == "bytes-untold") {
    settings->bytes_untold = number != 0;
  } else if (name == "bytes-zero") {
    settings->bytes_zero = number != 0;
  } else if (name == "forks-answer") {
    settings->forks_answer = number != 0;
  } else if (name == "missing-room-is-final") {
    settings->missing_room_is_final = number != 0;
  } else if (name == "sync-crashes") {
    settings->sync_crashes = number != 0;
  } else if (name == "host-extra-bytes") {
    settings->host_extra_bytes = number;
  } else if (name == "leaves-holes") {
    settings->leaves_holes = number != 0;
  } else if (name == "mig") {
    settings->mig = number != 0;
  } else {
    return false;
  }
  return true;
}

bool RunControl(const std::vector<std::string>& words, DevicePool* pool, CallLog* log, Settings* settings,
                std::string* answer) {
  const std::string command = words.empty() ? "" : words[0];
  if (command == "inject") {
    PlannedFault planned;
    if (!ParseFault(words, &planned, answer)) return false;
    log->Plan(planned);
    return true;
  }
  if (command == "clear" && words.size() == 1) {
    log->ClearFaults();
    ++settings->times_cleared;
    return true;
  }
  if (command == "stats" && words.size() == 1) {
    *answer = "{\"driver_version\": " + std::to_string(settings->driver_version) +
              ",\n \"gpus\": " + pool->GpusJson() + ",\n \"processes\": " + pool->ProcessesJson() +
              ",\n \"calls\": " + log->CountsJson() + "}\n";
    return true;
  }
  if (command == "calls" && words.size() == 1) {
    *answer = log->CallsJson() + "\n";
    return true;
  }
  if (command == "set" && words.size() == 3) {
    if (ChangeSetting(words[1], words[2], pool, settings)) return true;
    *answer = "set: there is no setting '" + words[1] + "' that could be '" + words[2] + "'";
    return false;
  }
  uint64_t bytes = 0;
  gpu::cuda::Uuid uuid;
  if (command == "reserve" && words.size() == 3 && UuidFromText(words[1], &uuid) &&
      Number(words[2], &bytes)) {
    if (pool->Reserve(uuid, bytes)) return true;
    *answer = "reserve: no GPU " + words[1] + " with " + words[2] + " bytes free";
    return false;
  }
  *answer = "'" + command +
            "' is no command, or its words are wrong: inject, clear, stats, calls, set NAME VALUE, "
            "reserve UUID BYTES";
  return false;
}

}  // namespace rekindle::gpu_sim
