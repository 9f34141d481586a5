"""A back end whose workers give prepared answers."""


class Member:
    """A worker whose answers are given."""

    def __init__(self, prepare):
        self.kind, self.plan = prepare.func, prepare.args[0]
        self.given, self.answers, self.ends, self.waiting = [], [], [], False
        self.give = self.given.append

    def answer(self):
        return self.answers.pop(0)

    def stop(self, patience_s=None):
        self.ends.append(("stop", patience_s))

    def dismiss(self):
        self.ends.append("dismiss")

    def waits(self):
        return self.waiting


class Backend:
    """Starts members; hears those that have an answer, and fails where nothing would ever be heard."""

    host = "127.0.0.1"

    def __init__(self):
        self.members, self.limits, self.react = [], set(), lambda members: None

    def start(self, prepare):
        self.members.append(Member(prepare))
        return self.members[-1]

    def pack(self, value):
        return ("packed", value)

    def heard(self, members, limits):
        self.limits.add(limits)
        self.react(list(members))
        found = [member for member in members if member.answers]
        assert found, "waits for ever"
        return found

    def of(self, kind):
        return [member for member in self.members if member.kind is kind]
