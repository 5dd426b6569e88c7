// A call that streams how far it is, and then one result.
#pragma once

#include <unistd.h>

#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "cli/client.h"
#include "cli/interrupts.h"
#include "cli/output.h"
#include "cli/progress_bar.h"

namespace rekindle::cli {

// The event with the result of `call`, which makes the call with what it is given for the events. Signals
// cancel it. `show(bar, event)` draws how far it is; the bar is gone when this returns. `has_result`: of an
// event. Internal: the call has ended well, without a result.
template <typename Event, typename Call, typename Show, typename HasResult>
absl::StatusOr<Event> StreamedResult(Client& client, const Output& output, Interrupts& interrupts, Call call,
                                     Show show, HasResult has_result) {
  interrupts.SetAction([&client](int) { client.Cancel(); });
  const absl::Cleanup no_action = [&interrupts] { interrupts.SetAction(nullptr); };
  ProgressBar bar(STDERR_FILENO, !output.json());
  std::optional<Event> result;
  const Client::OnEvent<Event> on_event = [&](const Event& event) {
    show(bar, event);
    if (has_result(event)) result = event;
  };
  RK_RETURN_IF_ERROR(call(on_event));
  if (!result) return absl::InternalError("the service ended this without a result");
  return *std::move(result);
}

// Where `Event` has `progress` and `result`.
template <typename Event, typename Call>
absl::StatusOr<Event> StreamedResult(Client& client, const Output& output, Interrupts& interrupts,
                                     Call call) {
  return StreamedResult<Event>(
      client, output, interrupts, std::move(call),
      [](ProgressBar& bar, const Event& event) {
        if (event.has_progress()) bar.Update(event.progress());
      },
      [](const Event& event) { return event.has_result(); });
}

}  // namespace rekindle::cli
