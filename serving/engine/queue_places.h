// QueuePlaces: how many sequences of an engine's clients have been submitted and have not ended.
//
// There are so many places for all of them, and those are shared by dynamic thresholds (Choudhury
// and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998): a client may hold eight times as many
// as are free. So one that is alone has nearly all of them, and still leaves some to whoever comes.
// Requests of nobody in particular may have all.
//
// Thread contract: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/base/mutex.h"

namespace moesaic {

class QueuePlaces {
 public:
  explicit QueuePlaces(int64_t places) : places_(places) {}

  // For a request of so many sequences; it is enough that there is a place for one of them. Throws
  // Error(kUnavailable), and takes nothing, when there is none for this client.
  void Take(const std::string& client, int64_t sequences) EXCLUDES(mutex_);
  void GiveBack(const std::string& client, int64_t sequences) EXCLUDES(mutex_);

 private:
  const int64_t places_;
  Mutex mutex_;
  int64_t taken_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, int64_t> of_client_ GUARDED_BY(mutex_);  // those that hold some
};

}  // namespace moesaic
