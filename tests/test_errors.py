from imitate.errors import MOST_NAMES, nearest


def test_the_nearest_name():
    assert nearest("batchsize", ["batch_size", "epochs"]) == "did you mean 'batch_size'?"


def test_all_names_where_none_is_near():
    assert nearest("x", ["lift", "can"]) == "valid names: can, lift"
    assert nearest("x", []) == "there are none"


def test_of_many_names_only_a_few():
    names = [f"name{k:02}" for k in range(MOST_NAMES + 1)]
    said = nearest("zzz", names)
    assert said == "valid names are name00, name01, name02, name03, name04 ... (61 in all)"
